//! HTTP API v1: one file a noun. The OpenAPI document is made of what stands here.

mod agents;
mod config;
mod events;
mod health;
mod letters;
mod login;
mod runs;
mod system;
mod tasks;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::problem::Problem;

/// No body is larger; a prompt of the largest size fits, however it is written.
const LARGEST_BODY: usize = 1 << 20;
const LARGEST_BATCH: usize = 64 << 20;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "ringfence",
        version = "1",
        description = "Runs coding agents in the isolation you choose: tasks, runs, the queue and the system behind it.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem)),
    tags(
        (name = "health", description = "Whether it works."),
        (name = "tasks", description = "Work that is done in its turn."),
        (name = "runs", description = "Attempts at tasks, and what came of them."),
        (name = "agents", description = "Who does it."),
        (name = "events", description = "What happened."),
        (name = "config", description = "Settings of the running system."),
        (name = "system", description = "Control of the system itself."),
    )
)]
struct Document;

/// All routes, and the document that describes them.
pub(crate) fn router() -> (Router<App>, utoipa::openapi::OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(health::health))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(tasks::list, tasks::add))
        .merge(
            OpenApiRouter::new().routes(routes!(tasks::add_many)).layer(DefaultBodyLimit::max(LARGEST_BATCH)),
        )
        .routes(routes!(tasks::show, tasks::delete))
        .routes(routes!(tasks::cancel))
        .routes(routes!(tasks::retry))
        .routes(routes!(runs::list))
        .routes(routes!(runs::show))
        .routes(routes!(runs::record))
        .routes(routes!(runs::log))
        .routes(routes!(runs::net))
        .routes(routes!(runs::diff))
        .routes(routes!(runs::attachment))
        .routes(routes!(agents::list))
        .routes(routes!(agents::usage))
        .routes(routes!(letters::list))
        .routes(routes!(letters::show, letters::discard))
        .routes(routes!(letters::retry))
        .routes(routes!(events::events))
        .routes(routes!(config::show, config::change))
        .routes(routes!(system::status))
        .routes(routes!(system::processes))
        .routes(routes!(system::stop_all))
        .routes(routes!(system::process))
        .routes(routes!(system::start))
        .routes(routes!(system::stop))
        .routes(routes!(system::process_logs))
        .routes(routes!(system::modes))
        .routes(routes!(system::work))
        .routes(routes!(system::doctor))
        .routes(routes!(system::probe))
        .routes(routes!(system::auth))
        .routes(routes!(login::issue_code))
        .routes(routes!(login::rotate_token))
        .split_for_parts();
    complete(&mut document);
    let text = document.to_pretty_json().unwrap_or_default();
    let told = axum::routing::get(move || async move {
        ([(axum::http::header::CONTENT_TYPE, "application/json")], text)
    });
    (router.route("/openapi.json", told).layer(DefaultBodyLimit::max(LARGEST_BODY)), document)
}

/// The document, as it is committed.
pub fn openapi() -> String {
    router().1.to_pretty_json().unwrap_or_default() + "\n"
}

/// What may happen to every request, and how one is let in.
fn complete(document: &mut utoipa::openapi::OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let open = path.starts_with("/health");
        let operations = [
            (&mut item.get, &["409", "422"][..]),
            (&mut item.post, &["400", "408", "409", "413", "415", "422"]),
            (&mut item.patch, &["400", "408", "409", "413", "415", "422"]),
            (&mut item.delete, &["409", "422"]),
        ];
        for (operation, more) in operations {
            let Some(operation) = operation else { continue };
            more.iter().chain(&["404", "429", "503"]).for_each(|status| promise(operation, status));
            if open {
                operation.security = Some(Vec::new());
            } else {
                ["401", "403"].iter().for_each(|status| promise(operation, status));
            }
        }
    }
    let components = document.components.get_or_insert_with(Default::default);
    components.add_security_scheme(
        "api-key",
        SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key"))),
    );
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("The daemon's own token (`api.token` in its state directory), or API_SECRET."))
        .build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let session = ApiKeyValue::with_description(
        crate::sessions::COOKIE,
        "The session of a browser. The port is part of the name: `ringfence-4301`.",
    );
    components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(session)));
    let empty: [&str; 0] = [];
    let by = |name: &str| utoipa::openapi::security::SecurityRequirement::new(name, empty);
    document.security = Some(vec![by("bearer"), by("api-key"), by("session")]);
}

fn promise(operation: &mut Operation, status: &str) {
    if operation.responses.responses.contains_key(status) {
        return;
    }
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let words = match status {
        "400" => "The body cannot be read.",
        "401" => "A token or key is missing or wrong.",
        "403" => "Not allowed.",
        "404" => "Nobody knows it.",
        "408" => "The body did not come in time.",
        "409" => "It cannot be done as things are.",
        "413" => "The body is too large.",
        "415" => "The body is not JSON.",
        "422" => "It makes no sense.",
        "429" => "Too often.",
        _ => "Not just now.",
    };
    let response =
        ResponseBuilder::new().description(words).content("application/problem+json", content).build();
    operation.responses.responses.insert(status.to_owned(), response.into());
}
