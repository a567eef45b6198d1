//! Files that an agent names in its last word, `[send_file: /workspace/x.png]`, as attachments of the result.
//!
//! The agent wrote the words and the files, so neither is trusted: a file is opened beneath the workspace as it was when
//! the run began, through no link, without waiting for anybody, and only if it is a plain file of a bearable size.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use globset::GlobSet;
use ring::digest::{Context, SHA256};
use ringfence_core::event::Attachment;
use ringfence_core::paths::{GuestPath, PathMapping};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

const BEGIN: &str = "[send_file:";
/// No more are attached to one result.
const MOST: usize = 32;
/// No larger file is.
const LARGEST: u64 = 100 << 20;

/// What a run must not read, so that nothing of it comes back by this way either.
#[derive(Default)]
pub(crate) struct Kept {
    /// Globs below the workspace.
    pub(crate) denied: GlobSet,
    /// Paths of the host.
    pub(crate) hidden: Vec<PathBuf>,
}

/// Where files of a run are looked for, and where they are copied to.
pub(crate) struct Places {
    workspace: PathMapping,
    /// The person's directory for copies, as it was before the run.
    copies: Option<(PathBuf, File)>,
    /// Directories that stand for the workspace: the layer first, if there is one.
    roots: Vec<File>,
}

impl Places {
    /// Holds the workspace, and the directory for copies, as they are now.
    pub(crate) fn hold(
        workspace: &PathMapping,
        layer: Option<&Path>,
        copy_to: Option<&Path>,
    ) -> io::Result<Self> {
        let directories = layer.map(|layer| layer.join("upper")).into_iter();
        let directories = directories.chain([workspace.host().as_path().to_owned()]);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let roots = directories.filter_map(|path| openat(CWD, path, flags, Mode::empty()).ok());
        let copies = match copy_to {
            Some(path) => {
                fs::create_dir_all(path)?;
                Some((path.to_owned(), openat(CWD, path, flags, Mode::empty())?.into()))
            }
            None => None,
        };
        let (workspace, roots) = (workspace.clone(), roots.map(File::from).collect());
        Ok(Self { workspace, copies, roots })
    }

    /// Opens what a person named inside, or tells why not.
    fn open(&self, named: &str, kept: &Kept) -> Result<File, String> {
        if named.chars().any(char::is_control) {
            return Err("it is no name of a file".into());
        }
        let rest = self.below(Path::new(named))?;
        let host = self.workspace.host().as_path().join(&rest);
        let denied = rest.ancestors().any(|path| kept.denied.is_match(path));
        if denied || kept.hidden.iter().any(|hidden| host.starts_with(hidden)) {
            return Err("the run may not read it".into());
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mut found = Err(Errno::NOENT);
        for root in &self.roots {
            found = openat2(root.as_fd(), &rest, flags, Mode::empty(), beneath);
            if !matches!(found, Err(Errno::NOENT)) {
                break;
            }
        }
        let file = File::from(found.map_err(reason)?);
        let data = file.metadata().map_err(|error| error.to_string())?;
        match data.is_file() {
            false => Err("it is not a file".into()),
            true if data.len() > LARGEST => Err(format!("it is larger than {} MiB", LARGEST >> 20)),
            true => Ok(file),
        }
    }

    /// A path below the workspace, as the run sees it, without a way out.
    fn below(&self, named: &Path) -> Result<PathBuf, String> {
        let outside = || "it is outside of the workspace".to_owned();
        let inside = match named.is_absolute() {
            true => {
                let guest = GuestPath::new(named).map_err(|_| outside())?;
                let workspace = self.workspace.guest().as_path();
                guest.as_path().strip_prefix(workspace).map_err(|_| outside())?.to_owned()
            }
            false => named.to_owned(),
        };
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if plain && inside.file_name().is_some() { Ok(inside) } else { Err(outside()) }
    }
}

fn reason(error: Errno) -> String {
    match error {
        Errno::LOOP => "it is behind a link".into(),
        Errno::XDEV => "it is outside of the workspace".into(),
        Errno::NOENT | Errno::NOTDIR => "it is not there".into(),
        Errno::NXIO => "it is not a file".into(),
        other => io::Error::from(other).to_string(),
    }
}

/// The text without its tags, and what they named. What cannot be attached is told at the end of the text. What must not be
/// read is asked for only if something was named.
pub(crate) fn collect(text: &str, places: &Places, kept: impl FnOnce() -> Kept) -> (String, Vec<Attachment>) {
    let (mut plain, names) = tags(text);
    if names.is_empty() {
        return (plain, Vec::new());
    }
    let kept = kept();
    let (mut attached, mut missing): (Vec<Attachment>, Vec<String>) = (Vec::new(), Vec::new());
    for name in names {
        if attached.iter().any(|known| known.path == Path::new(&name)) {
            continue;
        }
        let tried = match attached.len() < MOST {
            true => places.open(&name, &kept).and_then(|file| attach(&name, file, places)),
            false => Err(format!("no more than {MOST} files are attached")),
        };
        match tried {
            Ok(attachment) => attached.push(attachment),
            Err(why) => missing.push(format!("- {}: {why}", name.escape_debug())),
        }
    }
    if !missing.is_empty() {
        plain = format!("{plain}\n\n{}\n{}", Attachment::WARNING, missing.join("\n")).trim_start().to_owned();
    }
    (plain, attached)
}

/// Takes the tags out of a text. A tag ends at the first bracket, or is none.
fn tags(text: &str) -> (String, Vec<String>) {
    let (mut plain, mut names) = (String::new(), Vec::new());
    let mut rest = text;
    while let Some(begin) = rest.find(BEGIN) {
        let after = &rest[begin + BEGIN.len()..];
        let Some(end) = after.find(']') else { break };
        plain.push_str(&rest[..begin]);
        let name = after[..end].trim();
        if !name.is_empty() {
            names.push(name.to_owned());
        }
        rest = &after[end + 1..];
    }
    plain.push_str(rest);
    (if names.is_empty() { plain } else { plain.trim().to_owned() }, names)
}

/// Reads a file once, for its sum and for its copy.
fn attach(name: &str, file: File, places: &Places) -> Result<Attachment, String> {
    let path = PathBuf::from(name);
    let words = |error: io::Error| error.to_string();
    let directory = places.copies.as_ref();
    let mut copy = directory.map(|directory| new_file(directory, &path)).transpose().map_err(words)?;
    let mut sum = Context::new(&SHA256);
    let mut size = 0;
    let mut buffer = vec![0; 64 << 10];
    // Whoever writes to it meanwhile does not make it longer.
    let mut file = file.take(LARGEST);
    loop {
        let count = file.read(&mut buffer).map_err(words)?;
        if count == 0 {
            break;
        }
        sum.update(&buffer[..count]);
        size += count as u64;
        if let Some((_, copy)) = &mut copy {
            copy.write_all(&buffer[..count]).map_err(words)?;
        }
    }
    let sha256 = sum.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let media_type = mime_guess::from_path(&path).first_or_octet_stream().to_string();
    Ok(Attachment { path, size, media_type, sha256, copy: copy.map(|(path, _)| path) })
}

/// A file of this name in a directory of the person's; one that is there is not replaced.
fn new_file((path, directory): &(PathBuf, File), named: &Path) -> io::Result<(PathBuf, File)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stem = named.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let ending = named.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    for count in 0..1000 {
        let number = if count == 0 { String::new() } else { format!("-{count}") };
        let name = format!("{stem}{number}{ending}");
        match openat(directory, &name, flags, Mode::from_raw_mode(0o644)) {
            Err(Errno::EXIST) => {}
            made => return Ok((path.join(name), made?.into())),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use ringfence_core::paths::{HostPath, PathMapping, PathMappingMode};

    use super::{Kept, Places, collect, tags};

    fn places(directory: &Path, copy_to: Option<&Path>) -> Places {
        let mapping = PathMapping::new(PathMappingMode::Mapped, HostPath::new(directory).unwrap());
        Places::hold(&mapping, None, copy_to).unwrap()
    }

    fn kept(directory: &Path) -> Kept {
        let mut globs = globset::GlobSetBuilder::new();
        globs.add(globset::Glob::new("**/.env").unwrap());
        Kept { denied: globs.build().unwrap(), hidden: vec![directory.join("hidden")] }
    }

    #[test]
    fn tags_are_taken_out_and_other_brackets_are_not() {
        let (text, names) = tags("Here: [send_file: /workspace/a b.png] and [1] [send_file:c]\n");
        assert_eq!((text.as_str(), names), ("Here:  and [1]", vec!["/workspace/a b.png".into(), "c".into()]));
        assert_eq!(tags("[send_file: unfinished").0, "[send_file: unfinished");
        assert_eq!(tags(" kept as it is \n").0, " kept as it is \n");
    }

    #[test]
    fn a_file_is_attached_with_all_that_is_known_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("out")).unwrap();
        std::fs::write(directory.path().join("out/a.png"), "abc").unwrap();
        for _ in 0..2 {
            let text = "Done. [send_file: /workspace/out/a.png] [send_file: /workspace/out/a.png]";
            let (text, attached) =
                collect(text, &places(directory.path(), Some(out.path())), || kept(directory.path()));
            assert_eq!((text.as_str(), attached.len()), ("Done.", 1));
            assert_eq!((attached[0].size, attached[0].media_type.as_str()), (3, "image/png"));
            assert!(attached[0].sha256.starts_with("ba7816bf"), "{}", attached[0].sha256);
            assert_eq!(std::fs::read_to_string(attached[0].copy.as_ref().unwrap()).unwrap(), "abc");
        }
        assert!(out.path().join("a.png").exists() && out.path().join("a-1.png").exists());
    }

    #[test]
    fn nothing_that_an_agent_can_name_leads_out_or_hangs() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        symlink("/etc", at("etc")).unwrap();
        symlink("/etc/passwd", at("passwd")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        std::fs::File::create(at("sparse")).unwrap().set_len(10 << 30).unwrap();
        std::fs::write(at("new\nline"), "x").unwrap();
        std::fs::create_dir_all(at("deep/.env")).unwrap();
        std::fs::create_dir(at("hidden")).unwrap();
        for name in [".env", "deep/.env/x", "hidden/x"] {
            std::fs::write(at(name), "secret").unwrap();
        }
        for name in [
            ".env",
            "/workspace/./.env",
            "deep/.env/x",
            "hidden/x",
            "/etc/passwd",
            "/workspace/../../etc/passwd",
            "/workspace/../x",
            "../x",
            "/workspace/etc/passwd",
            "/workspace/passwd",
            "/workspace/directory",
            "/workspace",
            "/workspace2/x",
            "/workspace/fifo",
            "/workspace/socket",
            "/workspace/sparse",
            "/workspace/new\nline",
            "/workspace/missing",
            "/proc/self/environ",
            "~/.ssh/id_rsa",
            ".",
        ] {
            let (text, attached) =
                collect(&format!("Hi [send_file: {name}]"), &places(directory.path(), None), || {
                    kept(directory.path())
                });
            assert!(attached.is_empty(), "{name}");
            assert!(text.starts_with("Hi\n\n[Warning: Some files could not be found"), "{text}");
        }
    }
}
