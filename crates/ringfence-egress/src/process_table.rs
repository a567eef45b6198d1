//! All processes with their parents, read once: one short file for each process.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::processes::{GATE_NAME, MAX_ANCESTORS, is_below_gate, processes};

/// No number, name, state and parent together are longer. A name has 15 bytes, those of threads of the kernel 63.
const STAT_BYTES: usize = 128;

/// What is known of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// 0 if it has none in this namespace.
    pub(crate) parent: u32,
    pub(crate) is_gate: bool,
}

/// The processes of `/proc`.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable(BTreeMap<u32, Entry>);

impl ProcessTable {
    /// Reads it. A process that ends meanwhile is not in it.
    pub(crate) fn read() -> Self {
        let read = |process: PathBuf| {
            let pid = process.file_name()?.to_str()?.parse().ok()?;
            Some((pid, read_entry(&process.join("stat"))?))
        };
        Self(processes().filter_map(read).collect())
    }

    /// All processes, as directories of `/proc`, mostly the last started first.
    pub(crate) fn newest_first(&self) -> Vec<PathBuf> {
        self.0.keys().rev().map(|pid| path(*pid)).collect()
    }

    /// The processes that belong to runs, as directories of `/proc`.
    pub(crate) fn below_gates(&self) -> Vec<PathBuf> {
        let mut outside = HashSet::new();
        let below = self.0.keys().filter(|pid| self.is_below_gate(**pid, &mut outside));
        below.map(|pid| path(*pid)).collect()
    }

    /// Whether a gate is above a process. `outside` are those that are known to have none, and gets what is found.
    fn is_below_gate(&self, pid: u32, outside: &mut HashSet<u32>) -> bool {
        let mut chain = Vec::new();
        let mut at = pid;
        while chain.len() < MAX_ANCESTORS {
            // One that was reparented while the table was read is asked for anew.
            let Some(entry) = self.0.get(&at) else { return is_below_gate(&path(pid)) };
            chain.push(at);
            at = entry.parent;
            // A gate is outside itself, unless it is in a run, and what is below it is not.
            if self.0.get(&at).is_some_and(|parent| parent.is_gate) {
                return true;
            }
            if at == 0 || outside.contains(&at) {
                outside.extend(chain);
                return false;
            }
        }
        true
    }
}

/// Reads what is needed of a `stat`, by one call.
pub(crate) fn read_entry(file: &Path) -> Option<Entry> {
    let mut bytes = [0; STAT_BYTES];
    let length = File::open(file).ok()?.read(&mut bytes).ok()?;
    entry(bytes.get(..length)?)
}

fn path(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The name in `/proc/PID/stat` is in parentheses and may hold some itself. State and parent follow.
fn entry(stat: &[u8]) -> Option<Entry> {
    let begin = memchr::memchr(b'(', stat)? + 1;
    let end = memchr::memrchr(b')', stat)?;
    let name = stat.get(begin..end)?;
    let mut after = stat[end + 1..].split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let parent = std::str::from_utf8(after.nth(1)?).ok()?.parse().ok()?;
    Some(Entry { parent, is_gate: name == GATE_NAME.as_bytes() })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    use super::{Entry, ProcessTable, entry};

    #[test]
    fn name_with_parentheses_does_not_hide_the_parent() {
        let read = |text: &str| entry(text.as_bytes()).map(|entry| (entry.parent, entry.is_gate));
        assert_eq!(read("7 (ringfence-gate) S 5 7 7"), Some((5, true)));
        assert_eq!(read("7 (a) S 1 (ringfence-gate)) S 5 7 7"), Some((5, false)));
        assert_eq!(read("7 ((ringfence-gate)) R 5 7 7"), Some((5, false)));
        for text in ["", "7 (x", "7 (x) S", "7 (x) S y", ")("] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    /// Numbers are used again, so a parent may have a higher one than its child.
    #[test]
    fn processes_of_runs_are_those_with_a_gate_above() {
        // There are no processes with such numbers, so that nothing is found out of the kernel.
        let first = u32::MAX - 20;
        let ascending = |number: u32| first + number;
        let descending = |number: u32| u32::MAX - number;
        for pid in [&ascending as &dyn Fn(u32) -> u32, &descending] {
            let entry = |(number, parent, is_gate)| {
                let parent = if number == 0 { 0 } else { pid(parent) };
                (pid(number), Entry { parent, is_gate })
            };
            let table: BTreeMap<_, _> = [
                (0, 0, false),
                (1, 0, true),
                (2, 1, true),
                (3, 2, false),
                (4, 0, false),
                (5, 4, false),
                (6, 1, false),
                (7, 6, false),
                // A ring cannot be told from a chain that is too long.
                (8, 9, false),
                (9, 8, false),
                // The parent is gone, and so is the process itself when it is asked for.
                (10, 11, false),
            ]
            .map(entry)
            .into();
            let below: BTreeSet<_> = ProcessTable(table).below_gates().into_iter().collect();
            let expected = [2, 3, 6, 7, 8, 9].map(|number| PathBuf::from(format!("/proc/{}", pid(number))));
            assert_eq!(below, BTreeSet::from(expected));
        }
    }

    #[test]
    fn every_process_that_is_read_has_its_parent() {
        let table = ProcessTable::read();
        assert_eq!(table.0[&std::process::id()].parent, std::os::unix::process::parent_id());
    }
}
