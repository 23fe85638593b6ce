//! The BPF programs and maps: as compiled, and as pinned.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow};
use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, Program, set_print,
};

use super::{Algorithm, Settings, cgroup, nonce};

#[cfg(test)]
mod tests;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/floodway.bpf.o"));
const PINS: &str = "/sys/fs/bpf/floodway";
const READER_PROGRAM: &str = "floodway_notices";
/// Name of the `struct_ops` map; its one element is the registration.
const CONTROL: &str = "floodway";
const READER: &str = "reader";
const NAMES_PROGRAM: &str = "floodway_names";
const OLDER_PROGRAM: &str = "floodway_older";
/// The link by which the reader of names is attached.
const NAMES_LINK: &str = "names_link";
/// The maps that are pinned, under their own names.
pub const HEARTBEATS: &str = "heartbeats";
pub const MANAGED: &str = "managed";
pub const COUNTERS: &str = "counters";

/// What libbpf says while it fails: the kernel's verifier, the missing type.
static MESSAGES: Mutex<String> = Mutex::new(String::new());

/// Most of it that an error shows, from the end: verifier logs are long.
const MESSAGES_SHOWN: usize = 4000;

#[allow(clippy::needless_pass_by_value, reason = "libbpf-rs sets the signature")]
fn keep_message(level: PrintLevel, message: String) {
    if let (PrintLevel::Warn, Ok(mut messages)) = (level, MESSAGES.lock()) {
        messages.push_str(&message);
    }
}

/// Has libbpf's messages end in errors and not on the terminal.
pub fn capture_messages() {
    set_print(Some((PrintLevel::Warn, keep_message)));
}

/// An error, and what libbpf said meanwhile.
pub fn explain(error: anyhow::Error) -> anyhow::Error {
    let mut messages = MESSAGES.lock().map(|messages| messages.clone()).unwrap_or_default();
    if messages.is_empty() {
        return error;
    }
    let surplus = messages.len().saturating_sub(MESSAGES_SHOWN);
    let surplus = (surplus..).find(|at| messages.is_char_boundary(*at)).unwrap_or(0);
    messages.drain(..surplus);
    anyhow!("{error:#}\n{}", messages.trim_end())
}

/// Programs that a kernel may refuse, and that are then done without.
#[derive(Clone, Copy, Default)]
struct Extras {
    /// The reader of names in SYN-ACKs.
    names: bool,
    /// The iterator that gives the congestion control to older connections.
    older: bool,
}

/// The programs in the kernel, not yet in use.
pub struct Loaded {
    object: Object,
    /// What notices must bear to be believed.
    pub nonce: u64,
    /// Keeps the reader of names attached, until it is pinned.
    names: Option<Link>,
}

impl Loaded {
    /// Loads and verifies, with as many extras as the kernel takes. `previous` is the default congestion control of before.
    pub fn load(settings: &Settings, previous: &str) -> Result<Self> {
        let all = Extras { names: true, older: true };
        let attempts = [all, Extras { names: false, ..all }, Extras { older: false, ..all }];
        let attempts = if settings.plain { &[][..] } else { &attempts };
        let with = |&extras: &Extras| Self::load_with(settings, previous, extras).ok();
        let loaded = attempts.iter().find_map(with);
        loaded.map_or_else(|| Self::load_with(settings, previous, Extras::default()), Ok)
    }

    /// Returns `true` if names in SYN-ACKs are read.
    pub const fn reads_names(&self) -> bool {
        self.names.is_some()
    }

    fn attach_names(mut self) -> Result<Self> {
        let root = cgroup::open_root()?;
        let reader = self.object.progs_mut().find(|program| program.name() == NAMES_PROGRAM);
        let reader = reader.context("no reader of names in the BPF object")?;
        self.names = Some(reader.attach_cgroup(root.as_raw_fd())?);
        Ok(self)
    }

    fn load_with(settings: &Settings, previous: &str, extras: Extras) -> Result<Self> {
        let nonce = nonce::draw()?;
        let mut open = ObjectBuilder::default()
            .name("floodway")?
            .open_memory(OBJECT)
            .context("the BPF object in this program is broken")?;
        for mut map in
            open.maps_mut().filter(|map| map.name().to_string_lossy().ends_with(".config"))
        {
            map.set_initial_value(&config_bytes(settings, nonce, extras.names, previous))?;
        }
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            match &name[..] {
                READER_PROGRAM => program.set_autoload(!settings.plain),
                NAMES_PROGRAM => program.set_autoload(extras.names),
                OLDER_PROGRAM => program.set_autoload(extras.older),
                _ => {}
            }
        }
        let object = open.load().context("the kernel does not take the BPF programs")?;
        let loaded = Self { object, nonce, names: None };
        if extras.names { loaded.attach_names() } else { Ok(loaded) }
    }

    /// Gives the registered congestion control to the connections that have the default of before, where the kernel takes the iterator. Their number is a counter.
    pub fn change_older(&mut self) -> Result<()> {
        let mut programs = self.object.progs_mut();
        let Some(program) = programs.find(|it| it.name() == OLDER_PROGRAM && it.autoload()) else {
            return Ok(());
        };
        let link = program.attach().context("cannot iterate over TCP sockets")?;
        let mut output = Vec::new();
        Iter::new(&link)?.read_to_end(&mut output).context("cannot iterate over TCP sockets")?;
        Ok(())
    }

    /// Registers the congestion control, for ever.
    pub fn register(&mut self) -> Result<()> {
        let mut control = self
            .object
            .maps_mut()
            .find(|map| map.name() == CONTROL)
            .context("no congestion control in the BPF object")?;
        let mut link: Link =
            control.attach_struct_ops().context("the kernel does not register `floodway`")?;
        // Without this the end of the link takes the registration back.
        link.disconnect();
        Ok(())
    }

    /// Pins all that must be found again.
    pub fn pin(&mut self) -> Result<()> {
        fs::create_dir_all(PINS).with_context(|| format!("cannot make {PINS}"))?;
        for mut map in self.object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if [CONTROL, HEARTBEATS, MANAGED, COUNTERS].contains(&&name[..]) {
                map.pin(path(&name)).with_context(|| format!("cannot pin {name}"))?;
            }
        }
        for mut program in self.object.progs_mut() {
            if program.name() == READER_PROGRAM && program.autoload() {
                program.pin(path(READER)).context("cannot pin the reader")?;
            }
        }
        if let Some(link) = &mut self.names {
            link.pin(path(NAMES_LINK)).context("cannot pin the reader of names")?;
        }
        Ok(())
    }
}

/// `struct config` of `bpf/config.h`.
fn config_bytes(settings: &Settings, nonce: u64, reads_names: bool, previous: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0] = (settings.algorithm == Algorithm::Cubic).into();
    bytes[1] = settings.plain.into();
    bytes[2] = reads_names.into();
    bytes[4..8].copy_from_slice(&settings.initial_window.unwrap_or(0).to_ne_bytes());
    bytes[8..16].copy_from_slice(&nonce.to_ne_bytes());
    // At most 15 characters; the rest is zeros.
    bytes[16..].iter_mut().zip(previous.bytes().take(15)).for_each(|(to, from)| *to = from);
    bytes
}

fn path(name: &str) -> PathBuf {
    Path::new(PINS).join(name)
}

/// A pinned map; `None` when nothing is installed.
pub fn pinned_map(name: &str) -> Result<Option<MapHandle>> {
    let path = path(name);
    if !path.exists() {
        return Ok(None);
    }
    let map = MapHandle::from_pinned_path(&path);
    Ok(Some(map.with_context(|| format!("cannot open {}", path.display()))?))
}

/// The pinned reader and its program ID; `None` when none is installed.
pub fn pinned_reader() -> Result<Option<(OwnedFd, u32)>> {
    let path = path(READER);
    if !path.exists() {
        return Ok(None);
    }
    let reader = Program::fd_from_pinned_path(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let id = Program::id_from_fd(reader.as_fd())?;
    Ok(Some((reader, id)))
}

/// Returns `true` if the reader of names in SYN-ACKs is attached, for as long as its link is pinned.
pub fn reads_names() -> bool {
    path(NAMES_LINK).exists()
}

/// Takes the registration back, if there is one. Sockets that use it keep it.
pub fn unregister() -> Result<()> {
    let Some(control) = pinned_map(CONTROL)? else { return Ok(()) };
    match control.delete(&0u32.to_ne_bytes()) {
        // A registration that failed left the map alone.
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(error).context("cannot take `floodway` back")
        }
        _ => Ok(()),
    }
}

/// Removes the pins; what is used elsewhere lives on there.
pub fn unpin() -> Result<()> {
    match fs::remove_dir_all(PINS) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {PINS}"))
        }
        _ => Ok(()),
    }
}

/// The value of a key.
pub fn look_up(map: &MapHandle, key: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok(map.lookup(key, MapFlags::ANY)?)
}

/// The sum of a per-CPU counter.
pub fn sum(map: &MapHandle, index: u32) -> Result<u64> {
    let values = map.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
    let numbers = values.iter().filter_map(|value| Some(u64::from_ne_bytes(*value.first_chunk()?)));
    Ok(numbers.sum())
}
