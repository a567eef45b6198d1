//! Images and containers that an engine keeps.
#![expect(clippy::disallowed_methods, reason = "files of the state directory, which no run sees")]

use std::collections::BTreeMap;
use std::io::Read;

use bollard::models::ContainerSummaryStateEnum;
use ringfence_core::failure::Failure;

use super::driver::connect;
use super::engine::Engine;
use super::room::Room;
use super::{Flavor, image};
use crate::keeper::{IMAGE_LABEL, Keeper, Kept, StaleImage};
use crate::{Surroundings, shared::container::plan};
use ringfence_core::failure::FailureClass;

/// The keeper behind an engine.
pub(crate) struct Containers {
    engine: Engine,
    around: Surroundings,
}

pub(crate) fn keeper(flavor: Flavor, around: &Surroundings) -> Result<Box<dyn Keeper>, Failure> {
    Ok(Box::new(Containers { engine: connect(flavor, around)?, around: around.clone() }))
}

fn named(image: &str) -> Result<String, Failure> {
    let read = image::read(image).map_err(|why| Failure::new(FailureClass::Refused, why))?;
    Ok(read.name)
}

impl Keeper for Containers {
    fn import(&self, archive: Box<dyn Read + Send>, image: &str) -> Result<String, Failure> {
        self.engine.import(archive, &named(image)?)
    }

    fn build(
        &self,
        context: Vec<u8>,
        image: &str,
        arguments: &BTreeMap<String, String>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), Failure> {
        self.engine.build(context, &named(image)?, arguments, tell)
    }

    fn list(&self) -> Result<Vec<Kept>, Failure> {
        let abandoned: Vec<String> = Room::abandoned(&self.around.state)
            .into_iter()
            .filter_map(|(_, note)| Some(note?.container))
            .collect();
        let state = self.around.state.display().to_string();
        let living = Room::living(&self.around.state);
        let kept = self.engine.containers(plan::LABEL_RUN)?.into_iter().filter_map(|found| {
            let name = found.names?.first()?.trim_start_matches('/').to_owned();
            let mut labels = found.labels?;
            let owner = labels.remove(plan::LABEL_OWNER).unwrap_or_default();
            let run = labels.remove(plan::LABEL_RUN)?;
            // Of another installation nothing is known but whether it is still there.
            let orphan = match owner == state {
                true => abandoned.contains(&name) || !living.contains(&run),
                false => {
                    let gone = matches!(std::path::Path::new(&owner).try_exists(), Ok(false));
                    gone && found.state != Some(ContainerSummaryStateEnum::RUNNING)
                }
            };
            Some(Kept {
                orphan,
                state: found.state.map(|state| state.to_string()).unwrap_or_default(),
                created: found.created.unwrap_or_default(),
                size: found.size_rw.unwrap_or_default(),
                name,
                run,
                owner,
            })
        });
        Ok(kept.collect())
    }

    fn replaced_images(&self) -> Result<Vec<StaleImage>, Failure> {
        let found = self.engine.unnamed_images(IMAGE_LABEL)?.into_iter();
        Ok(found.map(|image| StaleImage { id: image.id, created: image.created }).collect())
    }

    fn remove_image(&self, id: &str) -> Result<(), Failure> {
        self.engine.remove_image(id)
    }

    fn remove(&self, name: &str) -> Result<(), Failure> {
        self.engine.remove(name)?;
        for (mut room, note) in Room::abandoned(&self.around.state) {
            if let Some(note) = note.filter(|note| note.container == name) {
                note.clear_workspace();
                room.give_up();
            }
        }
        Ok(())
    }
}
