//! Writes the seeds of every target into its corpus, where libFuzzer looks for them.

use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, _, seeds) in ringfence_fuzz::TARGETS {
        let directory = corpus.join(target);
        fs::create_dir_all(&directory)?;
        for (number, seed) in seeds().into_iter().enumerate() {
            fs::write(directory.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
