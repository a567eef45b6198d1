//! Mode `kubernetes`: a pod of a cluster.
//!
//! Here so far: its settings and what doctor looks at. Runs in it are refused until its driver is here.

mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Kubernetes,
    boundary: "pod, with the runtime class of your choice",
    needs: "a kubeconfig",
    keys: &[],
    probe: probe::probe,
    keeper: None,
    backend: None,
};
