//! Tasks that `ringfence task add` reads from standard input.
//!
//! Text is a prompt and nothing else: it may have come from a run, which must not choose where its own prompt is carried out. Only with
//! `--json-tasks` it is JSON, with everything that a task can say. An option then stands in one place: on the command line or in the JSON.

use anyhow::{Context, anyhow, bail};
use ringfence_core::task::TaskSpec;
use serde_json::{Map, Value};

use crate::report::advise;

/// An object as it is written.
type Fields = Map<String, Value>;

/// How standard input is divided into tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Division {
    /// All of it is one prompt, or one JSON document.
    Whole,
    /// Each line that is not blank is a prompt, or a JSON object.
    Lines,
}

/// The tasks in a text whose prompts have everything else from `base`.
pub(crate) fn prompts(text: &str, division: Division, base: &TaskSpec) -> anyhow::Result<Vec<TaskSpec>> {
    let with_prompt = |text: &str| TaskSpec { prompt: text.to_owned(), ..base.clone() };
    match division {
        Division::Whole => Ok(vec![with_prompt(text)]),
        Division::Lines => Ok(filled(text)?.into_iter().map(|(_, line)| with_prompt(line)).collect()),
    }
}

/// Whether a prompt was probably meant as JSON.
pub(crate) fn resembles_json(prompt: &str) -> bool {
    let is_object = |text: &str| {
        text.trim_start().strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with(['"', '}']))
    };
    is_object(prompt) || prompt.trim_start().strip_prefix('[').is_some_and(is_object)
}

/// The tasks in a text that is JSON. `given` are the options of the command line, under their names in the JSON: defaults of each task, and
/// of none that has the same field.
pub(crate) fn json_tasks(text: &str, division: Division, given: &Fields) -> anyhow::Result<Vec<TaskSpec>> {
    match division {
        Division::Whole if text.trim_start().starts_with('[') => {
            read::<Vec<TaskSpec>>(text).context("standard input")?;
            let all = read::<Vec<Fields>>(text)?;
            let numbered = all.into_iter().enumerate();
            numbered
                .map(|(index, fields)| {
                    with_defaults(fields, given)
                        .with_context(|| format!("task {} of standard input", index + 1))
                })
                .collect()
        }
        Division::Whole => Ok(vec![json_task(text, given).context("standard input")?]),
        Division::Lines => filled(text)?
            .into_iter()
            .map(|(number, line)| {
                json_task(line, given).with_context(|| format!("line {number} of standard input"))
            })
            .collect(),
    }
}

/// The lines that are not blank, with their numbers.
fn filled(text: &str) -> anyhow::Result<Vec<(usize, &str)>> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let lines: Vec<_> = numbered.filter(|(_, line)| !line.trim().is_empty()).collect();
    match lines.is_empty() {
        true => bail!("there is no line on standard input"),
        false => Ok(lines),
    }
}

fn read<'a, T: serde::Deserialize<'a>>(text: &'a str) -> anyhow::Result<T> {
    Ok(serde_json::from_str(text)?)
}

fn json_task(text: &str, given: &Fields) -> anyhow::Result<TaskSpec> {
    // A map would keep the last of two equal fields.
    read::<TaskSpec>(text)?;
    with_defaults(read(text)?, given)
}

/// A task of JSON, with the options of the command line that it does not have.
fn with_defaults(mut fields: Fields, given: &Fields) -> anyhow::Result<TaskSpec> {
    if let Some(field) = given.keys().find(|field| fields.contains_key(*field)) {
        let option = option_of(field);
        let remedy = format!("leave `{option}` out, or the field `{field}`");
        return Err(advise(
            anyhow!("the field `{field}` stands in the JSON, and `{option}` on the command line"),
            remedy,
        ));
    }
    fields.extend(given.clone());
    let mut spec: TaskSpec = serde_json::from_value(Value::Object(fields))?;
    // A command needs no agent to be named.
    if given.contains_key("command") && spec.agent.is_none() {
        spec.agent = Some("command".to_owned());
    }
    Ok(spec)
}

/// The option of the command line that sets a field.
fn option_of(field: &str) -> String {
    match field {
        "directory" => "--cwd".to_owned(),
        "not_before" => "--delay".to_owned(),
        field => format!("--{}", field.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use ringfence_core::mode::Mode;
    use ringfence_core::task::{Role, TaskSpec};
    use serde_json::json;

    use super::{Division, Fields, json_tasks, prompts, resembles_json};

    const OBJECT: &str = r#"{"prompt": "x", "agent": "command", "mode": "host", "command": "true"}"#;

    fn given(value: &serde_json::Value) -> Fields {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn text_is_a_prompt_whatever_it_looks_like() {
        let base = TaskSpec { mode: Some(Mode::Native), ..TaskSpec::new("-") };
        for text in [OBJECT, &format!("[{OBJECT}]"), "a line"] {
            for division in [Division::Whole, Division::Lines] {
                let read = prompts(text, division, &base).unwrap();
                assert_eq!(read, [TaskSpec { prompt: text.to_owned(), ..base.clone() }]);
            }
        }
        let read = prompts(&format!("a line\n\n{OBJECT}\n"), Division::Lines, &base).unwrap();
        assert_eq!(read.iter().map(|spec| spec.prompt.as_str()).collect::<Vec<_>>(), ["a line", OBJECT]);
        assert!(read.iter().all(|spec| spec.mode == base.mode && spec.agent.is_none()));
        assert!(prompts("\n \n", Division::Lines, &base).is_err());
    }

    #[test]
    fn text_that_resembles_json_is_recognised() {
        for text in [OBJECT, "{}", " {\n\"prompt\":", "[{\"prompt\"", "[ {}]"] {
            assert!(resembles_json(text), "{text}");
        }
        for text in ["", "{{name}} is wrong", "[fix] it", "fix {\"a\": 1}", "{ x }", "[1]"] {
            assert!(!resembles_json(text), "{text}");
        }
    }

    #[test]
    fn options_are_defaults_of_tasks_in_json() {
        let options = given(&json!({"mode": "native", "role": "tester", "env": ["A"]}));
        let one = TaskSpec {
            mode: Some(Mode::Native),
            role: Role::Tester,
            env: vec!["A".to_owned()],
            ..TaskSpec::new("one")
        };
        let object = r#"{"prompt": "one"}"#;
        assert_eq!(json_tasks(object, Division::Whole, &options).unwrap(), std::slice::from_ref(&one));
        let two = TaskSpec { prompt: "two".to_owned(), priority: 3, ..one.clone() };
        let list = r#"[{"prompt": "one"}, {"prompt": "two", "priority": 3}]"#;
        assert_eq!(json_tasks(list, Division::Whole, &options).unwrap(), [one.clone(), two]);
        assert_eq!(json_tasks(&format!("\n{object}\n"), Division::Lines, &options).unwrap(), [one]);
        let [command] = json_tasks(object, Division::Whole, &given(&json!({"command": "true"})))
            .unwrap()
            .try_into()
            .unwrap();
        assert_eq!(command.agent.as_deref(), Some("command"));
    }

    #[test]
    fn option_in_both_places_or_a_wrong_text_is_refused() {
        let lines = format!("{{\"prompt\": \"y\"}}\n{OBJECT}");
        for (text, division, options, said) in [
            (OBJECT, Division::Whole, json!({"mode": "native"}), "the field `mode`"),
            (OBJECT, Division::Whole, json!({"mode": "host"}), "`--mode` on the command line"),
            (r#"{"prompt": "x", "policy": null}"#, Division::Whole, json!({"policy": "locked"}), "`policy`"),
            (r#"{"prompt": "x", "not_before": 1}"#, Division::Whole, json!({"not_before": 2}), "`--delay`"),
            (
                &lines,
                Division::Lines,
                json!({"agent": "demo"}),
                "line 2 of standard input: the field `agent`",
            ),
            (&format!("[{OBJECT}]"), Division::Whole, json!({"agent": "demo"}), "task 1 of standard input"),
            ("a prompt", Division::Whole, json!({}), "standard input: expected value"),
            ("{\"prompt\": \"x\"}\na prompt", Division::Lines, json!({}), "line 2 of standard input"),
            (r#"{"prompt": "x", "mode": "native", "mode": "host"}"#, Division::Whole, json!({}), "duplicate"),
            (r#"{"prompt": "x", "rolle": "tester"}"#, Division::Whole, json!({}), "rolle"),
            ("", Division::Lines, json!({}), "no line"),
        ] {
            let error = json_tasks(text, division, &given(&options)).unwrap_err();
            assert!(format!("{error:#}").contains(said), "{text}: {error:#}");
        }
    }
}
