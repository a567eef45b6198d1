//! Files that derive from the tables. They are committed, and compared by `gen --check`.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::bail;
use ringfence_backends::settings_keys;
use ringfence_core::config::{Keys, schema};
use ringfence_core::policy;
use serde_json::Value;

use crate::shell::root;

const NOTE: &str = "<!-- Written by `cargo xtask gen` from the tables in the code. -->\n";

fn files() -> anyhow::Result<Vec<(PathBuf, String)>> {
    let json = |value: Value| anyhow::Ok(format!("{}\n", serde_json::to_string_pretty(&value)?));
    Ok(vec![
        ("schemas/settings.schema.json".into(), json(schema(&settings_keys(), "ringfence settings"))?),
        ("schemas/policy.schema.json".into(), json(schema(&Keys::new([policy::KEYS]), "ringfence policy"))?),
        ("schemas/openapi.json".into(), ringfence_server::openapi()),
        ("docs/settings.md".into(), settings_page()?),
        ("docs/modes.md".into(), modes_page()?),
        ("docs/agent-clis.md".into(), agent_clis_page()?),
    ])
}

pub(crate) fn write() -> anyhow::Result<()> {
    for (path, text) in files()? {
        let file = root().join(&path);
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        if fs::read_to_string(&file).ok().as_deref() != Some(&text) {
            #[expect(
                clippy::disallowed_methods,
                reason = "a generated file in a work tree needs no durability"
            )]
            fs::write(&file, text)?;
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(())
}

pub(crate) fn check() -> anyhow::Result<()> {
    let stale: Vec<String> = files()?
        .into_iter()
        .filter(|(path, text)| fs::read_to_string(root().join(path)).ok().as_ref() != Some(text))
        .map(|(path, _)| path.display().to_string())
        .collect();
    if !stale.is_empty() {
        bail!("not what the tables say: {}; run `cargo xtask gen`", stale.join(", "));
    }
    Ok(())
}

fn settings_page() -> anyhow::Result<String> {
    let mut page = format!(
        "{NOTE}# Settings\n\n\
         `~/.ringfence/settings.json` (or where `RINGFENCE_HOME` says), and `.ringfence/settings.json` in a project. JSON with\n\
         comments and trailing commas. Layers, the later wins: built-in, user, project, environment, flags.\n\
         `ringfence config explain KEY` says which layer won. A project's file may only tighten, in the way of the last\n\
         column, unless its directory is in `trusted_projects` of your own file. Trusted are the settings that it has when\n\
         `ringfence config trust DIR` names it there, or when the next run begins; after a change they may only tighten, until you trust\n\
         them again.\n\n\
         `EXECUTION_ENVIRONMENT` (`host`, `sandbox`) and `LAUNCH_MODE` (`process`, `docker`) set `sandbox.mode`: `host` and\n\
         `process` mean mode `host`; `sandbox` and `docker` mean the isolating mode that the settings name, or `docker`.\n\
         Every variable also works with `RINGFENCE_` before it, which then wins.\n\n\
         | key | expects | default | variable | what for | a project may |\n|---|---|---|---|---|---|\n"
    );
    for key in settings_keys().iter() {
        let env = key.env.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let default = key.default.map(|text| format!("`{text}`")).unwrap_or_default();
        let project = match key.project {
            ringfence_core::config::ProjectRule::Never => "",
            ringfence_core::config::ProjectRule::Lower => "lower it",
            ringfence_core::config::ProjectRule::Subset => "shorten it",
            ringfence_core::config::ProjectRule::LeaveFirst => "add a boundary",
            ringfence_core::config::ProjectRule::Later => "name a stricter preset",
        };
        writeln!(
            page,
            "| `{}` | {} | {default} | {env} | {} | {project} |",
            key.path,
            key.kind.expected(),
            key.doc
        )?;
    }
    page.push_str(
        "\n## Where this departs from the documents it grew out of\n\n\
         - With no mode named anywhere, the mode is `native`, not `host`. `ringfence sandbox set host` gives the old behaviour.\n\
         - `network: \"default\"` means no network but the gate. Another name (`bridge`, say) gives the engine's open network,\n  \
         and the record says so.\n\
         - The default image is `ringfence/agent:latest`.\n",
    );
    Ok(page)
}

fn modes_page() -> anyhow::Result<String> {
    let mut page =
        format!("{NOTE}# Modes\n\n| mode | boundary | needs | in this version |\n|---|---|---|---|\n");
    for entry in ringfence_backends::ALL {
        let state = if entry.backend.is_some() {
            "runs agents"
        } else {
            "settings and doctor only; runs are refused"
        };
        writeln!(page, "| `{}` | {} | {} | {state} |", entry.mode, entry.boundary, entry.needs)?;
    }
    page.push_str(
        "\nA run is refused where its mode cannot keep every promise of its policy:\n\
         `ringfence policy check POLICY --mode MODE` says which, and by what mechanism the others are kept.\n",
    );
    Ok(page)
}

fn agent_clis_page() -> anyhow::Result<String> {
    let mut page = format!(
        "{NOTE}# Agent CLIs\n\n| name | how to get it | hosts it needs | variables with credentials | login files below the home |\n|---|---|---|---|---|\n"
    );
    for cli in ringfence_agents::ALL {
        let code =
            |items: &[&str]| items.iter().map(|item| format!("`{item}`")).collect::<Vec<_>>().join(", ");
        let install =
            if cli.facts().program.is_some() { format!("`{}`", cli.facts().install) } else { "–".into() };
        writeln!(
            page,
            "| `{}` | {install} | {} | {} | {} |",
            cli.facts().name,
            code(cli.facts().hosts),
            code(cli.facts().login.env),
            code(cli.facts().login.paths),
        )?;
    }
    page.push_str(
        "\n`demo` is a scripted agent that is part of the binary. `command` runs any program: `{prompt}` as a word of the\n\
         command stands for the prompt, which is also in `RINGFENCE_PROMPT`.\n",
    );
    Ok(page)
}
