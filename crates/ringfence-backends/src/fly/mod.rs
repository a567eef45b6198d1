//! Mode `fly`: a machine at Fly.io.
//!
//! Here so far: its settings and what doctor looks at. Runs in it are refused until its driver is here.

mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Fly,
    boundary: "remote machine",
    needs: "a Fly.io account and `fly`",
    keys: &[],
    probe: probe::probe,
    keeper: None,
    backend: None,
};
