//! Who data planes run as.
//!
//! A broker that is root gives them the user `floodway`, which packages create, or a number of the range that systemd keeps for dynamic users and that nobody
//! has: no account, no group, no process. A broker that is somebody else cannot change users; its data planes are what it is, without its
//! capabilities.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};
use floodway_process::sandbox::User;
use nix::unistd::{Gid, Group, Uid, User as Account};
use rustix::thread::{CapabilitySet, capabilities};

/// The account that packages create.
const ACCOUNT: &str = "floodway";
/// Numbers of dynamic users (systemd's `DynamicUser=`).
const DYNAMIC: RangeInclusive<u32> = 61_184..=65_519;

/// Chooses the user of data planes; `None` for that of the broker. `control`, the control socket, tells this switch from others on the host: two do not
/// get the same number, and one gets the same again.
///
/// # Errors
/// All numbers are taken.
pub fn choose(control: &Path) -> anyhow::Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    require_capabilities()?;
    if let Some(account) = Account::from_name(ACCOUNT).context("cannot look up users")? {
        return Ok(Some(User { uid: account.uid.as_raw(), gid: account.gid.as_raw() }));
    }
    let busy = users_of_processes();
    let is_taken = |id: u32| {
        // What cannot be looked up is not free.
        let account = Account::from_uid(Uid::from_raw(id)).map_or(true, |found| found.is_some());
        let group = Group::from_gid(Gid::from_raw(id)).map_or(true, |found| found.is_some());
        account || group || busy.contains(&id)
    };
    let mut hasher = DefaultHasher::new();
    control.hash(&mut hasher);
    match free_number(hasher.finish(), is_taken) {
        Some(id) => Ok(Some(User { uid: id, gid: id })),
        None => bail!(
            "no free user from {} to {} (create the user {ACCOUNT})",
            DYNAMIC.start(),
            DYNAMIC.end()
        ),
    }
}

/// What it takes to start a process of another user, and to end one that hangs.
const NEEDED: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::KILL, "CAP_KILL"),
];

/// Root in a container may lack some of it.
fn require_capabilities() -> anyhow::Result<()> {
    let held = capabilities(None).context("cannot tell the capabilities")?.effective;
    let missing = NEEDED.iter().filter(|(one, _)| !held.contains(*one)).map(|(_, name)| *name);
    let missing = missing.collect::<Vec<_>>().join(", ");
    if !missing.is_empty() {
        bail!(
            "the switch is root without {missing}, so that its data plane cannot have a user of its own, or not be ended when it hangs \
             (add that, or start the switch as another user with the capabilities that uplinks and vCPUs need)"
        );
    }
    Ok(())
}

/// A number that is not taken: the first one from a place that `seed` chooses.
fn free_number(seed: u64, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
    let len = DYNAMIC.end() - DYNAMIC.start() + 1;
    // Smaller than the length, which is a u32.
    let first = (seed % u64::from(len)) as u32;
    (0..len).map(|i| DYNAMIC.start() + (first + i) % len).find(|&id| !is_taken(id))
}

/// Users that run something.
fn users_of_processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.uid()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_number_is_found_wherever_the_search_begins() {
        for seed in [0, 1, 4335, 4336, u64::MAX] {
            let first = free_number(seed, |_| false).unwrap();
            assert!(DYNAMIC.contains(&first));
            assert_eq!(free_number(seed, |_| false), Some(first), "the same again");
            assert_eq!(free_number(seed, |id| id != 65_000), Some(65_000));
            assert_ne!(free_number(seed, |id| id == first), Some(first));
        }
        assert_eq!(free_number(7, |_| true), None);
    }

    #[test]
    fn users_of_processes_are_known() {
        assert!(users_of_processes().contains(&Uid::effective().as_raw()));
    }
}
