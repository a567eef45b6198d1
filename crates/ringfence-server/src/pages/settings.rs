//! Settings: each with its value and the layer that it comes from.

use axum::extract::State;
use axum::response::Response;
use maud::html;
use serde::Deserialize;

use super::view::Page;
use super::{Form, Site, Visitor, Wrong, back};
use crate::deeds::is_changeable;
use crate::wire::plain;

const HERE: &str = "/ui/system/settings";

pub(super) async fn page(State(app): Site, visitor: Visitor) -> Result<Page, Wrong> {
    let settings = app.ask(|house| house.settings()).await?;
    let body = html! {
        h1 { "Settings" }
        p { "What is changed here is for the running system and in force from the next task. Files, and variables of the daemon, are layers of their own; the later one wins." }
        section.card { div.scroll id="settings" { table.settings {
            thead { tr { th { "Key" } th { "Value" } th { "From" } } }
            tbody { @for setting in &settings { tr {
                th scope="row" id=(setting.key) { (setting.key) small { (setting.doc) } }
                td {
                    @if is_changeable(&setting.key) {
                        form.line method="post" action=(HERE) {
                            (visitor.token())
                            input type="hidden" name="key" value=(setting.key);
                            @if setting.choices.is_empty() {
                                input name="value" value=[(!setting.masked).then(|| plain(&setting.value))] placeholder=[setting.masked.then(|| plain(&setting.value))] required[setting.masked] aria-label={ "Value of " (setting.key) } title=(setting.expects);
                            } @else {
                                select name="value" aria-label={ "Value of " (setting.key) } {
                                    @for choice in &setting.choices { option value=(choice) selected[plain(&setting.value) == *choice] { (choice) } }
                                }
                            }
                            button.small type="submit" name="what" value="set" { "Set" }
                            @if setting.system.is_some() { button.small type="submit" name="what" value="unset" { "Take back" } }
                        }
                    } @else { code { (plain(&setting.value)) } }
                }
                td { (setting.layer) }
            } } }
        } } }
    };
    Ok(Page::new(&visitor, HERE, "Settings", &body))
}

#[derive(Deserialize)]
pub(super) struct Change {
    key: String,
    value: String,
    what: String,
}

pub(super) async fn change(State(app): Site, visitor: Visitor, Form(wish): Form<Change>) -> Response {
    let value = (wish.what != "unset").then(|| wish.value.clone());
    let settled = app.change_settings(visitor.who, vec![(wish.key.clone(), value)]).await;
    let said = settled.map(|settled| match (settled.warnings.is_empty(), wish.what.as_str()) {
        (false, _) => format!("✗ {}", settled.warnings.join(" ")),
        (true, "unset") => format!("{} was taken back.", wish.key),
        (true, _) if settled.requires_restart => {
            format!("{} is {} after `ringfence restart`.", wish.key, wish.value)
        }
        (true, _) => format!("{} is {} from the next task.", wish.key, wish.value),
    });
    back(&visitor, HERE, said)
}
