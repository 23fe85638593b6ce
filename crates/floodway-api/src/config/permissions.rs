//! Who may connect to the sockets that the switch listens on: the sections `[permissions]`, for all ports, and
//! `[port.permissions]`, for one.

use super::error::Fault;
use super::keys::Keys;
use super::section::Section;

/// Keys of the sections, in the order in which errors list them.
pub(super) const KEYS: &[&str] = &["owner", "group", "mode"];
/// Longest name of a user or group (`LOGIN_NAME_MAX` without the closing NUL).
const MAX_NAME: usize = 255;
/// Connecting to a socket needs write permission.
const ANY_WRITE: u32 = 0o222;

/// Owner, group and mode of a port's socket in server mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Name or number of the owner; `None` leaves the user of the switch.
    pub owner: Option<String>,
    /// Name or number of the group; `None` leaves the group of the switch.
    pub group: Option<String>,
    /// Permission bits, whatever the umask. Default 0660.
    pub mode: u32,
}

impl Default for Permissions {
    fn default() -> Self {
        Self { owner: None, group: None, mode: 0o660 }
    }
}

/// The section of `parent`; keys that it has not are those of `default`.
pub(super) fn section(
    parent: &Section<'_, '_>,
    default: &Permissions,
) -> Result<Permissions, Fault> {
    let Some(section) = parent.table("permissions")? else {
        return Ok(default.clone());
    };
    section.allow(KEYS)?;
    Ok(Permissions {
        owner: account(&section, "owner")?.or_else(|| default.owner.clone()),
        group: account(&section, "group")?.or_else(|| default.group.clone()),
        mode: mode(&section)?.unwrap_or(default.mode),
    })
}

/// The section that says `config`, without keys that are those of `default`.
pub(super) fn keys(config: &Permissions, default: &Permissions) -> Keys {
    let Permissions { owner, group, mode } = config;
    let octal = |mode: u32| format!("{mode:04o}");
    Keys::default()
        .given("owner", owner.clone().filter(|_| *owner != default.owner))
        .given("group", group.clone().filter(|_| *group != default.group))
        .changed("mode", octal(*mode), octal(default.mode))
}

fn account(section: &Section<'_, '_>, key: &str) -> Result<Option<String>, Fault> {
    let Some(name) = section.string(key)? else {
        return Ok(None);
    };
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && !":,/".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain) {
        let problem = format!("must be the name or number of a {}", account_kind(key));
        return Err(section.fault(key, problem));
    }
    Ok(Some(name.to_owned()))
}

fn account_kind(key: &str) -> &'static str {
    if key == "owner" { "user" } else { "group" }
}

fn mode(section: &Section<'_, '_>) -> Result<Option<u32>, Fault> {
    let Some(text) = section.string("mode")? else {
        return Ok(None);
    };
    let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
    let octal = digits.len() == 3 && digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = octal.then(|| u32::from_str_radix(digits, 8).ok()).flatten();
    let Some(mode) = mode else {
        return Err(section.fault("mode", "must be three octal digits, like \"0660\""));
    };
    if mode & ANY_WRITE == 0 {
        let problem = "lets nobody connect, which needs write permission; choose one like \"0660\"";
        return Err(section.fault("mode", problem));
    }
    Ok(Some(mode))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, ConfigError};

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("f.toml"))
    }

    fn port(name: &str, extra: &str) -> String {
        format!("[[port]]\nname = \"{name}\"\nsocket = \"/tmp/{name}.sock\"\n{extra}\n")
    }

    #[test]
    fn a_port_has_the_permissions_of_all_but_for_its_own_keys() {
        let text = "[permissions]\nowner = \"libvirt-qemu\"\ngroup = \"kvm\"\n".to_owned()
            + &port("vm1", "")
            + &port("vm2", "[port.permissions]\ngroup = \"64055\"\nmode = \"600\"");
        let config = parse(&text).unwrap();
        let expected = |group: &str, mode| Permissions {
            owner: Some("libvirt-qemu".into()),
            group: Some(group.into()),
            mode,
        };
        assert_eq!(config.permissions, expected("kvm", 0o660));
        assert_eq!(config.ports[0].permissions, expected("kvm", 0o660));
        assert_eq!(config.ports[1].permissions, expected("64055", 0o600));
        assert_eq!(parse(&port("vm1", "")).unwrap().ports[0].permissions, Permissions::default());
    }

    #[test]
    fn wrong_permissions_are_named_with_their_fix() {
        let cases = [
            ("owner = \"\"", "owner = \"\": must be the name or number of a user"),
            ("group = \"a b\"", "group = \"a b\": must be the name or number of a group"),
            ("owner = 0", "owner = 0: must be a string in quotes"),
            ("mode = \"08\"", "mode = \"08\": must be three octal digits, like \"0660\""),
            ("mode = \"1777\"", "mode = \"1777\": must be three octal digits, like \"0660\""),
            ("mode = 0o660", "mode = 0o660: must be a string in quotes"),
            (
                "mode = \"0444\"",
                "mode = \"0444\": lets nobody connect, which needs write permission; choose one like \"0660\"",
            ),
            ("user = \"me\"", "user: unknown key; remove it; the keys here are owner, group, mode"),
        ];
        for (key, problem) in cases {
            let text = format!("[permissions]\n{key}\n{}", port("vm1", ""));
            let expected = format!("f.toml:2: permissions.{problem}");
            assert_eq!(parse(&text).unwrap_err().to_string(), expected);
            let text = port("vm1", &format!("[port.permissions]\n{key}"));
            let expected = format!("f.toml:5: port[0] \"vm1\".permissions.{problem}");
            assert_eq!(parse(&text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_socket_of_the_vmm_takes_no_permissions() {
        let text = port("vm1", "mode = \"client\"\n[port.permissions]\nmode = \"0600\"");
        let expected = "f.toml:4: port[0] \"vm1\".mode = \"client\": the VMM makes the socket, so [port.permissions] has no effect; \
                        remove one of them";
        assert_eq!(parse(&text).unwrap_err().to_string(), expected);
    }
}
