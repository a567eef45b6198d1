//! Files that an agent names in its last word, `[send_file: /workspace/x.png]`, as attachments of the result.
//!
//! The agent wrote the words and the files, so neither is trusted: a file is opened beneath the workspace as it was when
//! the run began, through no link, without waiting for anybody, and only if it is a plain file of a bearable size.

use std::fs::File;
use std::io::{self, Read, Take, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use globset::GlobSet;
use ring::digest::{Context, SHA256};
use ringfence_core::event::Attachment;
use ringfence_core::paths::{GuestPath, PathMapping};
use ringfence_workspace::executed::executed_by;
use ringfence_workspace::{Directory, HiddenFiles, Metadata};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

const BEGIN: &str = "[send_file:";
/// No more are attached to one result.
const MOST: usize = 32;
/// No larger file is.
const LARGEST: u64 = 100 << 20;
/// No more bytes are in all, by the lengths of the files.
const MAX_TOTAL_BYTES: u64 = 256 << 20;

/// No more entries of a workspace are searched for what a run must not read.
const MAX_SEARCHED: usize = 2_000_000;
/// Longest name that is looked at: no path of the kernel is longer.
const MAX_PATH_BYTES: usize = 4095;

/// What a run must not read, so that nothing of it comes back by this way either.
#[derive(Default)]
pub(crate) struct Unreadable {
    /// Globs below the workspace.
    denied: GlobSet,
    /// Paths of the host.
    hidden: Vec<PathBuf>,
    /// Files and directories that the globs and paths named before the run, whatever their names are now.
    files: HiddenFiles,
    /// Whether the run had no privileges over the permissions of files.
    without_privileges: bool,
}

impl Unreadable {
    /// All of it.
    pub(crate) fn everything() -> Self {
        Self { hidden: vec![PathBuf::from("/")], ..Self::default() }
    }

    /// What the sandbox hides as well: directories that hold too much that is denied are hidden as a whole. Added before the run.
    pub(crate) fn add_hidden(&mut self, paths: &[PathBuf]) {
        paths.iter().for_each(|path| self.files.add_path(path));
        self.hidden.extend_from_slice(paths);
    }

    /// Whether the run could open no more than the permissions allow, unlike root on the host.
    pub(crate) fn without_privileges(self, without_privileges: bool) -> Self {
        Self { without_privileges, ..self }
    }
}

/// The user's directory for copies, as it was before the run.
struct Copies {
    path: PathBuf,
    directory: Directory,
    /// Names that the policy protects, in lower case.
    protected: Vec<String>,
}

impl Copies {
    fn hold(path: &Path, workspace: &Path, protect: &[String]) -> io::Result<Self> {
        let names = protect.iter().filter_map(|path| Path::new(path).file_name()?.to_str());
        let protected = names.map(str::to_lowercase).collect();
        Ok(Self { path: path.to_owned(), directory: made_directory(path, workspace)?, protected })
    }

    /// Creates a file of this name. One that exists is not replaced.
    fn new_file(&self, named: &Path) -> io::Result<(PathBuf, File)> {
        let stem = named.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let ending =
            named.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
        for count in 0..1000 {
            let number = if count == 0 { String::new() } else { format!("-{count}") };
            let name = self.inert_name(format!("{stem}{number}{ending}"));
            match self.directory.create_file(Path::new(&name), 0o644) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return Ok((self.path.join(name), made?)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// A name that no program takes for its configuration, for an option or for a module: the agent has chosen the one that is given.
    /// Some file systems do not tell capital letters from small ones.
    fn inert_name(&self, name: String) -> String {
        let small = name.to_lowercase();
        let is_used = name.starts_with('.')
            || executed_by(Path::new(&small)).is_some()
            || self.protected.contains(&small);
        let (stem, ending) = small.rsplit_once('.').unwrap_or((&small, ""));
        let is_plain = small.starts_with(char::is_alphanumeric)
            && !small.contains('=')
            && !CONFIGURATION_STEMS.iter().any(|known| stem.starts_with(known));
        let has_one_ending = !TEXT_ENDINGS.contains(&ending) || !stem.contains('.');
        if !is_used && is_plain && has_one_ending && is_one_of(ending, &[TEXT_ENDINGS, HARMLESS_ENDINGS]) {
            return name;
        }
        let inert = format!("attachment-{}", name.trim_start_matches(['.', '-']));
        // Programs know their files by the whole name or by its ending.
        let keeps_ending = !is_used && is_one_of(ending, &[TEXT_ENDINGS, HARMLESS_ENDINGS, DATA_ENDINGS]);
        if keeps_ending { inert } else { format!("{inert}.txt") }
    }
}

/// Endings of text that people read.
const TEXT_ENDINGS: &[&str] = &["txt", "md"];
/// Endings of other files that no program takes for its configuration.
const HARMLESS_ENDINGS: &[&str] = &[
    "png", "jpg", "jpeg", "gif", "webp", "bmp", "svg", "ico", "pdf", "csv", "tsv", "log", "diff", "patch",
    "html", "htm", "mp3", "mp4", "wav", "ogg", "webm", "zip", "gz", "xz", "zst", "bz2", "tar", "tgz", "docx",
    "xlsx", "pptx", "odt", "ods", "odp", "rtf", "epub", "parquet", "sqlite", "ipynb",
];
/// Endings of data, by whose whole names programs know their configuration.
const DATA_ENDINGS: &[&str] = &["json", "jsonl", "xml", "yaml", "yml"];
/// How names of text begin that programs read.
const CONFIGURATION_STEMS: &[&str] =
    &["requirements", "constraints", "cmakelists", "meson", "conanfile", "skill", "copilot-instructions"];

fn is_one_of(ending: &str, lists: &[&[&str]]) -> bool {
    lists.iter().any(|list| list.contains(&ending))
}

/// Where files of a run are looked for, and where they are copied to.
pub(crate) struct Places {
    mapping: PathMapping,
    copies: Option<Copies>,
    /// The upper directory of the overlay, if there is one.
    upper: Option<Directory>,
    workspace: Directory,
    /// The permissions of the workspace before the run.
    permissions: u32,
}

impl Places {
    /// Gives the user back the rights to the workspace that the run took away. Returns what the user is told.
    pub(crate) fn restore_rights(&self) -> Option<String> {
        match self.workspace.restore_owner_rights(self.permissions) {
            Ok(false) => None,
            Ok(true) => Some(
                "the run took your rights to the workspace's directory away; they were given back".into(),
            ),
            Err(error) => Some(format!(
                "the run took your rights to the workspace's directory away, and they cannot be given back: {error}"
            )),
        }
    }

    /// Holds the workspace, and the directory for copies, as they are now.
    pub(crate) fn hold(
        mapping: &PathMapping,
        workspace: Directory,
        layer: Option<&Path>,
        copy_to: Option<&Path>,
        protect: &[String],
    ) -> io::Result<Self> {
        let upper = layer.map(|layer| own_directory(&layer.join("upper"))).transpose()?;
        let copies = copy_to.map(|path| Copies::hold(path, mapping.host().as_path(), protect)).transpose()?;
        let permissions = workspace.metadata(Path::new(""))?.permissions();
        Ok(Self { mapping: mapping.clone(), copies, upper, workspace, permissions })
    }

    /// Searches the workspace for what the run must not read. Done before the run, which may give it other names.
    pub(crate) fn unreadable(&self, denied: GlobSet, hidden: impl Iterator<Item = PathBuf>) -> Unreadable {
        let mut files = HiddenFiles::default();
        let mut paths = Vec::new();
        for path in hidden.filter_map(|path| real_path(&path)) {
            files.add_path(&path);
            paths.push(path);
        }
        files.search(&self.workspace, &|path| denied.is_match(path), MAX_SEARCHED);
        Unreadable { denied, hidden: paths, files, without_privileges: false }
    }

    /// Opens a file that the agent named, or tells why not.
    fn open(&self, named: &str, unreadable: &Unreadable, left: u64) -> Result<(File, u64), String> {
        if named.len() > MAX_PATH_BYTES || named.chars().any(char::is_control) {
            return Err("it is no name of a file".into());
        }
        let rest = self.below(Path::new(named))?;
        let host = self.mapping.host().as_path().join(&rest);
        let denied = rest.ancestors().any(|path| unreadable.denied.is_match(path));
        // The run saw a git directory of its own there.
        let is_git = |above: &Path| above.file_name().is_some_and(|name| name.eq_ignore_ascii_case(".git"));
        if rest.ancestors().skip(1).any(is_git) {
            return Err("it is in a git directory".into());
        }
        if denied || unreadable.hidden.iter().any(|hidden| host.starts_with(hidden)) {
            return Err(NOT_READABLE.into());
        }
        if unreadable.files.is_incomplete() {
            return Err("the workspace has too many files to tell whether the run may read it".into());
        }
        let mut found = Err(io::Error::from(Errno::NOENT));
        for root in self.upper.iter().chain([&self.workspace]) {
            let open = || open_readable(root, &rest, &unreadable.files);
            found = if unreadable.without_privileges { without_privileges(open) } else { open() };
            if !found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                break;
            }
        }
        let (file, length) = found.map_err(|error| reason(&error))?;
        match length {
            length if length > LARGEST => Err(format!("it is larger than {} MiB", LARGEST >> 20)),
            length if length > left => {
                Err(format!("all attachments would be larger than {} MiB", MAX_TOTAL_BYTES >> 20))
            }
            length => Ok((file, length)),
        }
    }

    /// A path below the workspace, as the run sees it, without a way out.
    fn below(&self, named: &Path) -> Result<PathBuf, String> {
        let outside = || "it is outside of the workspace".to_owned();
        let inside = match named.is_absolute() {
            true => {
                let guest = GuestPath::new(named).map_err(|_| outside())?;
                let workspace = self.mapping.guest().as_path();
                guest.as_path().strip_prefix(workspace).map_err(|_| outside())?.to_owned()
            }
            false => named.to_owned(),
        };
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if plain && inside.file_name().is_some() { Ok(inside) } else { Err(outside()) }
    }
}

/// Opens a file and tells its length, unless it, or a directory that it is in, is hidden. Each part of the path is opened by
/// itself, so that what is checked is what is read.
fn open_readable(root: &Directory, path: &Path, hidden: &HiddenFiles) -> io::Result<(File, u64)> {
    let mut parts = path.components().filter(|part| matches!(part, Component::Normal(_))).peekable();
    let mut directory = root.directory(Path::new(""))?;
    while let Some(part) = parts.next() {
        if hidden.contains(directory.id()) {
            break;
        }
        let name = Path::new(part.as_os_str());
        if parts.peek().is_some() {
            directory = directory.directory(name)?;
            continue;
        }
        let file = directory.file(name)?;
        let data = Metadata::of(&file)?;
        if hidden.contains(data.id()) {
            break;
        }
        return Ok((file, data.length()));
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, NOT_READABLE))
}

/// Opens something as the run would: root keeps its files, and loses what opens those of others. The capabilities are those of this
/// thread, and it gets them back.
fn without_privileges<T>(open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = capabilities(None)?;
    let over_permissions = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    set_capabilities(None, CapabilitySets { effective: before.effective - over_permissions, ..before })?;
    let opened = open();
    set_capabilities(None, before)?;
    opened
}

const NOT_READABLE: &str = "the run may not read it";

fn reason(error: &io::Error) -> String {
    let is = |code: Errno| error.raw_os_error() == Some(code.raw_os_error());
    match error.kind() {
        _ if is(Errno::LOOP) => "it is behind a link".into(),
        _ if is(Errno::XDEV) => "it is outside of the workspace".into(),
        _ if is(Errno::NXIO) => "it is not a file".into(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "it is not there".into(),
        _ if is(Errno::ACCESS) => NOT_READABLE.into(),
        _ => error.to_string(),
    }
}

/// Opens a directory of the state directory, whose path may be a link.
fn own_directory(path: &Path) -> io::Result<Directory> {
    let real = real_path(path).ok_or(io::ErrorKind::NotFound)?;
    Directory::open(&real).map_err(io::Error::other)
}

/// Opens the user's directory for copies, and makes it if it is missing. From where its path enters the workspace, no link is
/// followed: an earlier run may have made it.
fn made_directory(path: &Path, workspace: &Path) -> io::Result<Directory> {
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    let inside = above
        .into_iter()
        .find_map(|part| Some((part, real_path(part)?)).filter(|(_, real)| real.starts_with(workspace)));
    let Some((part, real)) = inside else {
        #[expect(
            clippy::disallowed_methods,
            reason = "the user named this directory, and no run writes there"
        )]
        std::fs::create_dir_all(path)?;
        return own_directory(path);
    };
    let mut directory = Directory::open(&real).map_err(io::Error::other)?;
    for part in path.strip_prefix(part).map_err(io::Error::other)?.components() {
        let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        match directory.create_directory(Path::new(name), 0o755) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => directory = directory.directory(Path::new(name))?,
        }
    }
    Ok(directory)
}

fn real_path(path: &Path) -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "a path of the user's settings, looked up before the run")]
    std::fs::canonicalize(path).ok()
}

/// The text without its tags, and what they named. What cannot be attached is told at the end of the text. What must not be
/// read stays behind, and so does what is not read by the deadline.
pub(crate) fn collect(
    text: &str,
    places: &Places,
    unreadable: &Unreadable,
    deadline: Instant,
) -> (String, Vec<Attachment>) {
    let (mut plain, names) = tags(text);
    if names.is_empty() {
        return (plain, Vec::new());
    }
    let (mut attached, mut missing): (Vec<Attachment>, Vec<String>) = (Vec::new(), Vec::new());
    let mut left = MAX_TOTAL_BYTES;
    for name in names {
        if attached.iter().any(|known| known.path == Path::new(&name)) {
            continue;
        }
        let tried = match attached.len() < MOST {
            true => places
                .open(&name, unreadable, left)
                .and_then(|(file, length)| attach(&name, file.take(length), places, deadline)),
            false => Err(format!("no more than {MOST} files are attached")),
        };
        match tried {
            Ok(attachment) => {
                left = left.saturating_sub(attachment.size);
                attached.push(attachment);
            }
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

/// Reads a file once, for its sum and for its copy. Whoever writes to it meanwhile does not make it longer.
fn attach(
    name: &str,
    mut file: Take<File>,
    places: &Places,
    deadline: Instant,
) -> Result<Attachment, String> {
    let path = PathBuf::from(name);
    let words = |error: io::Error| error.to_string();
    let copies = places.copies.as_ref();
    let mut copy = copies.map(|copies| copies.new_file(&path)).transpose().map_err(words)?;
    let mut sum = Context::new(&SHA256);
    let mut size = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        if Instant::now() >= deadline {
            // A copy of a part is no use, and takes space.
            if let (Some(copies), Some((path, _))) = (copies, &copy) {
                let name = path.file_name().map(Path::new).unwrap_or(path);
                let _ = copies.directory.remove_file(name);
            }
            return Err("the time of the run is over".into());
        }
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

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use ringfence_core::paths::{HostPath, PathMapping, PathMappingMode};
    use ringfence_workspace::Directory;

    use super::{Places, Unreadable, collect, tags};

    fn places(directory: &Path, copy_to: Option<&Path>) -> Places {
        let mapping = PathMapping::new(PathMappingMode::Mapped, HostPath::new(directory).unwrap());
        Places::hold(&mapping, Directory::open(directory).unwrap(), None, copy_to, &["ci/Deploy".into()])
            .unwrap()
    }

    fn unreadable(directory: &Path, places: &Places) -> Unreadable {
        let mut globs = globset::GlobSetBuilder::new();
        globs.add(globset::Glob::new("**/.env").unwrap());
        globs.add(globset::Glob::new("secrets/**").unwrap());
        places.unreadable(globs.build().unwrap(), [directory.join("hidden")].into_iter())
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn attachments_are_bounded_in_sum_and_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::File::create(at("0")).unwrap().set_len(90 << 20).unwrap();
        (1..8).for_each(|number| std::fs::hard_link(at("0"), at(&number.to_string())).unwrap());
        let text: String = (0..8).map(|number| format!("[send_file: {number}]")).collect();
        let places = places(directory.path(), None);
        let unreadable = unreadable(directory.path(), &places);
        let (told, attached) = collect(&text, &places, &unreadable, later());
        assert_eq!(attached.len(), 2);
        assert_eq!(told.matches("all attachments would be larger than 256 MiB").count(), 6, "{told}");
        let (told, attached) = collect(&text, &places, &unreadable, Instant::now());
        assert!(attached.is_empty() && told.contains("the time of the run is over"), "{told}");
    }

    #[test]
    fn names_that_are_longer_than_any_path_are_not_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let places = places(directory.path(), None);
        let text = format!("[send_file: {}]", "a/".repeat(2048));
        let (told, attached) = collect(&text, &places, &unreadable(directory.path(), &places), later());
        assert!(attached.is_empty() && told.contains("it is no name of a file"));
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
            let places = places(directory.path(), Some(out.path()));
            let (text, attached) = collect(text, &places, &unreadable(directory.path(), &places), later());
            assert_eq!((text.as_str(), attached.len()), ("Done.", 1));
            assert_eq!((attached[0].size, attached[0].media_type.as_str()), (3, "image/png"));
            assert!(attached[0].sha256.starts_with("ba7816bf"), "{}", attached[0].sha256);
            assert_eq!(std::fs::read_to_string(attached[0].copy.as_ref().unwrap()).unwrap(), "abc");
        }
        assert!(out.path().join("a.png").exists() && out.path().join("a-1.png").exists());
    }

    #[test]
    fn copies_have_no_name_that_programs_take_for_their_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("d")).unwrap();
        for (name, copied) in [
            (".git", "attachment-git.txt"),
            ("..rc", "attachment-rc.txt"),
            (".envrc", "attachment-envrc.txt"),
            (".anything.png", "attachment-anything.png.txt"),
            ("Package.JSON", "attachment-Package.JSON.txt"),
            ("x.code-workspace", "attachment-x.code-workspace.txt"),
            ("deploy", "attachment-deploy.txt"),
            ("deploy.png", "deploy.png"),
            ("deployed", "attachment-deployed.txt"),
            ("report.md", "report.md"),
            ("data.json", "attachment-data.json"),
            ("requirements.txt", "attachment-requirements.txt"),
            ("CMakeLists.txt", "attachment-CMakeLists.txt"),
            ("x.prompt.md", "attachment-x.prompt.md"),
            ("pyproject.toml", "attachment-pyproject.toml.txt"),
            ("conftest.py", "attachment-conftest.py.txt"),
            ("sitecustomize.py", "attachment-sitecustomize.py.txt"),
            ("evil.pth", "attachment-evil.pth.txt"),
            ("x.desktop", "attachment-x.desktop.txt"),
            ("-rf", "attachment-rf.txt"),
            ("--checkpoint-action=exec=sh x.sh", "attachment-checkpoint-action=exec=sh x.sh.txt"),
            ("-x.png", "attachment-x.png"),
            ("+!id.txt", "attachment-+!id.txt"),
        ] {
            std::fs::write(directory.path().join("d").join(name), name).unwrap();
            let places = places(directory.path(), Some(out.path()));
            let unreadable = unreadable(directory.path(), &places);
            let (text, attached) = collect(&format!("[send_file: d/{name}]"), &places, &unreadable, later());
            assert_eq!(attached.len(), 1, "{name}: {text}");
            assert_eq!(attached[0].path, Path::new("d").join(name));
            assert_eq!(attached[0].copy.as_deref(), Some(&*out.path().join(copied)), "{name}");
            assert_eq!(std::fs::read_to_string(out.path().join(copied)).unwrap(), name);
        }
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
            let places = places(directory.path(), None);
            let unreadable = unreadable(directory.path(), &places);
            let (text, attached) = collect(&format!("Hi [send_file: {name}]"), &places, &unreadable, later());
            assert!(attached.is_empty(), "{name}");
            assert!(text.starts_with("Hi\n\n[Warning: Some files could not be found"), "{text}");
        }
    }

    /// The run gives what it may not read other names: by links before it, by moving directories during it.
    #[test]
    fn other_names_of_unreadable_files_are_not_attached() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["secrets", "secrets/inner", "hidden", "open"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        for name in [".env", "secrets/key", "secrets/inner/key", "hidden/x", "open/x"] {
            std::fs::write(at(name), "secret").unwrap();
        }
        std::fs::hard_link(at(".env"), at("plain.txt")).unwrap();
        std::fs::hard_link(at("secrets/inner/key"), at("open/alias")).unwrap();
        let places = places(directory.path(), None);
        let unreadable = unreadable(directory.path(), &places);
        std::fs::rename(at("secrets"), at("pub")).unwrap();
        std::fs::rename(at("hidden"), at("shown")).unwrap();
        std::fs::write(at("pub/new"), "made by the run").unwrap();
        for name in ["plain.txt", "open/alias", "pub/key", "pub/inner/key", "shown/x"] {
            let (text, attached) = collect(&format!("[send_file: {name}]"), &places, &unreadable, later());
            assert!(attached.is_empty() && text.contains("the run may not read it"), "{name}: {text}");
        }
        std::fs::create_dir_all(at("open/.git")).unwrap();
        std::fs::write(at("open/.git/credentials"), "secret").unwrap();
        let (text, attached) = collect("[send_file: open/.git/credentials]", &places, &unreadable, later());
        assert!(attached.is_empty() && text.contains("it is in a git directory"), "{text}");
        for name in ["open/x", "pub/new"] {
            let (text, attached) = collect(&format!("[send_file: {name}]"), &places, &unreadable, later());
            assert_eq!(attached.len(), 1, "{name}: {text}");
        }
    }

    #[test]
    fn copies_do_not_leave_the_workspace_through_a_link_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), "abc").unwrap();
        symlink(outside.path(), directory.path().join("out")).unwrap();
        let mapping = PathMapping::new(PathMappingMode::Mapped, HostPath::new(directory.path()).unwrap());
        let hold = |path: &str| {
            let workspace = Directory::open(directory.path()).unwrap();
            Places::hold(&mapping, workspace, None, Some(&directory.path().join(path)), &[])
        };
        for path in ["out", "out/deeper", "real/../out"] {
            assert!(hold(path).is_err(), "{path}");
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        let places = hold("real/deeper").unwrap();
        let (_, attached) =
            collect("[send_file: a]", &places, &unreadable(directory.path(), &places), later());
        assert_eq!(std::fs::read_to_string(attached[0].copy.as_ref().unwrap()).unwrap(), "abc");
    }
}
