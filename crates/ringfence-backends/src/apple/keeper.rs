//! Images and containers that Apple's runtime keeps.
#![expect(clippy::disallowed_methods, reason = "files of the state directory, which no run sees")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;

use ringfence_core::failure::{Failure, FailureClass};
use serde_json::Value;

use super::command::{Program, ask, find};
use super::plan::LABEL;
use crate::Surroundings;
use crate::keeper::{Keeper, Kept};
use crate::shared::waiting::locked;

struct Runtime {
    program: Program,
    around: Surroundings,
}

pub(super) fn keeper(around: &Surroundings) -> Result<Box<dyn Keeper>, Failure> {
    Ok(Box::new(Runtime { program: find(around, "container")?, around: around.clone() }))
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(FailureClass::Unknown, error.to_string())
}

impl Keeper for Runtime {
    fn import(&self, _: Box<dyn Read + Send>, _: &str) -> Result<String, Failure> {
        let message = "Apple's runtime takes no file system for an image";
        Err(Failure::new(FailureClass::Refused, message).with_remedy("name an image with `--base`"))
    }

    fn build(
        &self,
        context: Vec<u8>,
        image: &str,
        arguments: &BTreeMap<String, String>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), Failure> {
        let directory = self.around.state.join("apple").join(format!("build-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(failed)?;
        let unpacked = tar::Archive::new(&context[..]).unpack(&directory).map_err(failed);
        let mut words: Vec<String> =
            ["build", "--progress", "plain", "--tag", image].map(String::from).to_vec();
        for (name, value) in arguments {
            words.extend(["--build-arg".to_owned(), format!("{name}={value}")]);
        }
        words.push(directory.display().to_string());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let built = unpacked.and_then(|()| ask(&self.program, &words));
        let _ = fs::remove_dir_all(&directory);
        built?.lines().for_each(tell);
        Ok(())
    }

    fn list(&self) -> Result<Vec<Kept>, Failure> {
        let text = ask(&self.program, &["list", "--all", "--format", "json"])?;
        let all: Vec<Value> = serde_json::from_str(&text).map_err(failed)?;
        let living = |run: &str| {
            let directory = self.around.state.join("apple").join(run);
            directory.exists() && locked(&directory).is_err()
        };
        let kept = all.iter().filter_map(|one| {
            let configuration = one.get("configuration")?;
            let run = configuration.get("labels")?.get(LABEL)?.as_str()?.to_owned();
            Some(Kept {
                name: configuration.get("id")?.as_str()?.to_owned(),
                orphan: !living(&run),
                run,
                owner: self.around.state.display().to_string(),
                state: one.get("status").and_then(Value::as_str).unwrap_or_default().to_owned(),
                created: 0,
                size: 0,
            })
        });
        Ok(kept.collect())
    }

    fn remove(&self, name: &str) -> Result<(), Failure> {
        ask(&self.program, &["delete", "--force", name]).map(drop)
    }
}
