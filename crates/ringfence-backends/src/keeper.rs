//! What an engine keeps besides runs: images, and containers that may have been left behind.

use std::collections::BTreeMap;
use std::io::Read;

use ringfence_core::failure::Failure;
use serde::Serialize;

/// An engine as the keeper of images and containers.
pub trait Keeper {
    /// Makes an image of a root file system, and tells what to call it in a Dockerfile.
    fn import(&self, archive: Box<dyn Read + Send>, image: &str) -> Result<String, Failure>;

    /// Builds an image from an archive with a `Dockerfile`, and tells each line of what happens.
    fn build(
        &self,
        context: Vec<u8>,
        image: &str,
        arguments: &BTreeMap<String, String>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), Failure>;

    /// The containers of ringfence, of whatever installation.
    fn list(&self) -> Result<Vec<Kept>, Failure>;

    /// Images of ringfence that were replaced, and that nothing is called by.
    fn replaced_images(&self) -> Result<Vec<StaleImage>, Failure> {
        Ok(Vec::new())
    }

    /// Takes such an image away, by its number.
    fn remove_image(&self, _: &str) -> Result<(), Failure> {
        Ok(())
    }

    /// Takes one away, by its name. With it goes what it has left elsewhere.
    fn remove(&self, name: &str) -> Result<(), Failure>;
}

/// The label of images that ringfence has made.
pub const IMAGE_LABEL: &str = "ringfence.image";

/// An image that was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StaleImage {
    /// Its number.
    pub id: String,
    /// When it was made, in seconds since 1970.
    pub created: i64,
}

/// A container of ringfence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// The run that it was made for.
    pub run: String,
    /// The state directory of the installation that made it.
    pub owner: String,
    /// How it is, in the engine's words.
    pub state: String,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// What it has written over its image, in bytes.
    pub size: i64,
    /// Whether nobody waits for it any more.
    pub orphan: bool,
}
