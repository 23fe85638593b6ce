//! Hosts between which connections follow VMs that move: the section `[migration]`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::Fault;
use super::keys::Keys;
use super::section::Section;

/// Keys of the section, in the order in which errors list them.
pub(super) const KEYS: &[&str] = &["listen", "hosts", "certificate", "key", "authorities", "plain"];
/// Most hosts that are asked whether they expect a VM: all are asked at once.
pub const MAX_HOSTS: usize = 64;
/// Longest name of a host (RFC 1035, 2.3.4, without the dots at both ends).
const MAX_NAME: usize = 253;
/// Why a switch of one process cannot have the section, and what to do.
pub const NO_BROKER: &str = "needs a switch of two processes, since the one that moves frames connects to nobody; start it without --single-process, or remove \
                             [migration]";
/// What is missing without them, and where files are in examples.
const FILES: &[(&str, &str)] = &[
    ("certificate", "/etc/floodway/migration/host.pem"),
    ("key", "/etc/floodway/migration/host.key"),
    ("authorities", "/etc/floodway/migration/ca.pem"),
];

/// Where connections go along with VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationConfig {
    /// Where other hosts connect; `None` takes nothing in.
    pub listen: Option<SocketAddr>,
    /// Hosts that a VM may move to, at most [`MAX_HOSTS`]. Empty sends nothing.
    pub hosts: Vec<Host>,
    /// How hosts know each other.
    pub trust: Trust,
}

/// How hosts know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Not at all, and whoever can listen reads what is sent: only where nobody but these hosts is.
    Plain,
    /// By certificates, both ways (TLS 1.3).
    Certificates {
        /// PEM file with this host's certificate, and those that lead to the authority.
        certificate: PathBuf,
        /// PEM file with its private key.
        key: PathBuf,
        /// PEM file with the certificates of the authorities that other hosts' certificates are of.
        authorities: PathBuf,
    },
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name or address, which its certificate has to be for.
    pub name: String,
    /// The TCP port on which it listens.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

/// It is no name or address with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHost;

impl FromStr for Host {
    type Err = NoHost;

    fn from_str(text: &str) -> Result<Self, NoHost> {
        let (name, port) = text.rsplit_once(':').ok_or(NoHost)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(NoHost)?;
        let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_valid = match bracketed {
            Some(address) => address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()),
            None => is_name(name),
        };
        let name = bracketed.unwrap_or(name).to_owned();
        is_valid.then_some(Self { name, port }).ok_or(NoHost)
    }
}

/// A name that resolvers take and that a certificate can be for, or an IPv4 address.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_plain = label.chars().all(plain) && !label.starts_with('-') && !label.ends_with('-');
        (1..=63).contains(&label.len()) && is_plain
    };
    // Of digits alone it would be an address (RFC 1123, 2.1).
    let last = name.rsplit('.').next();
    let is_number = last.is_some_and(|label| label.chars().all(|c| c.is_ascii_digit()));
    let is_host = name.len() <= MAX_NAME && name.split('.').all(is_label) && !is_number;
    is_host || name.parse::<Ipv4Addr>().is_ok()
}

/// The section of the file.
pub(super) fn section(root: &Section<'_, '_>) -> Result<Option<MigrationConfig>, Fault> {
    let Some(section) = root.table("migration")? else {
        return Ok(None);
    };
    section.allow(KEYS)?;
    let (listen, hosts) = (listen(&section)?, hosts(&section)?);
    if listen.is_none() && hosts.is_empty() {
        let problem = "has neither listen nor hosts, so no connection could go along; add listen = \"10.0.0.1:4790\" where VMs move to, and hosts = \
                       [\"10.0.0.2:4790\"] where they come from";
        return Err(section.whole(problem));
    }
    Ok(Some(MigrationConfig { listen, hosts, trust: trust(&section)? }))
}

fn listen(section: &Section<'_, '_>) -> Result<Option<SocketAddr>, Fault> {
    let must =
        "must be an address of this host and a port, like \"10.0.0.1:4790\" or \"[fd00::1]:4790\"";
    match section.parsed::<SocketAddr>("listen", must)? {
        Some(address) if address.port() == 0 => Err(section.fault("listen", must)),
        listen => Ok(listen),
    }
}

fn hosts(section: &Section<'_, '_>) -> Result<Vec<Host>, Fault> {
    let must = "must be a host's name or address and a port, like \"host-b.example:4790\" or \"[fd00::2]:4790\"";
    let hosts = section.parsed_list("hosts", must, |_: &Host| true)?.unwrap_or_default();
    if hosts.len() > MAX_HOSTS {
        let problem = format!("{} are too many; name at most {MAX_HOSTS}", hosts.len());
        return Err(section.fault("hosts", problem));
    }
    let second = hosts.iter().enumerate().find(|(index, host)| hosts[..*index].contains(host));
    match second {
        Some((_, host)) => {
            Err(section.fault("hosts", format!("{host} is there twice; remove one")))
        }
        None => Ok(hosts),
    }
}

fn trust(section: &Section<'_, '_>) -> Result<Trust, Fault> {
    if section.boolean("plain")?.unwrap_or(false) {
        for (key, _) in FILES {
            if section.string(key)?.is_some() {
                let problem = "has no effect with plain = true, which encrypts nothing and knows nobody; remove one of them";
                return Err(section.fault(key, problem));
            }
        }
        return Ok(Trust::Plain);
    }
    let mut files = FILES.iter().map(|(key, example)| file(section, key, example));
    let mut next = || files.next().unwrap_or_else(|| Ok(PathBuf::new()));
    Ok(Trust::Certificates { certificate: next()?, key: next()?, authorities: next()? })
}

fn file(section: &Section<'_, '_>, key: &str, example: &str) -> Result<PathBuf, Fault> {
    let Some(path) = section.string(key)? else {
        let problem = format!(
            "missing; add {key} = \"{example}\", or plain = true if nobody else can send or listen between the hosts"
        );
        return Err(section.fault(key, problem));
    };
    if !Path::new(path).is_absolute() || path.contains('\0') {
        let problem = format!("must be the whole path of a PEM file, like \"{example}\"");
        return Err(section.fault(key, problem));
    }
    Ok(PathBuf::from(path))
}

/// The section that says `config`.
pub(super) fn keys(config: Option<&MigrationConfig>) -> Keys {
    let Some(MigrationConfig { listen, hosts, trust }) = config else {
        return Keys::default();
    };
    let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
    let keys = Keys::default()
        .given("listen", listen.map(|address| address.to_string()))
        .given("hosts", (!hosts.is_empty()).then_some(hosts));
    match trust {
        Trust::Plain => keys.set("plain", true),
        Trust::Certificates { certificate, key, authorities } => keys
            .set("certificate", certificate.display().to_string())
            .set("key", key.display().to_string())
            .set("authorities", authorities.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigError};

    const FILES: &str = "certificate = \"/c\"\nkey = \"/k\"\nauthorities = \"/a\"\n";

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!("[migration]\n{text}"), Path::new("f.toml"))
    }

    fn host(name: &str, port: u16) -> Host {
        Host { name: name.to_owned(), port }
    }

    #[test]
    fn hosts_are_named_with_their_ports_and_what_shows_who_they_are() {
        let text = "listen = \"[fd00::1]:4790\"\nhosts = [\"b.example:4791\", \"10.0.0.2:4790\", \"[fd00::2]:1\"]\n";
        let config = parse(&format!("{text}{FILES}")).unwrap();
        let migration = config.migration.clone().unwrap();
        assert_eq!(migration.listen, Some("[fd00::1]:4790".parse().unwrap()));
        let hosts = [host("b.example", 4791), host("10.0.0.2", 4790), host("fd00::2", 1)];
        assert_eq!(migration.hosts, hosts);
        let [certificate, key, authorities] = ["/c", "/k", "/a"].map(PathBuf::from);
        assert_eq!(migration.trust, Trust::Certificates { certificate, key, authorities });
        let plain = parse("listen = \"10.0.0.1:4790\"\nplain = true\n").unwrap();
        assert_eq!(plain.migration.as_ref().unwrap().trust, Trust::Plain);
        for config in [config, plain] {
            let written = toml::to_string(&config).unwrap();
            assert_eq!(Config::parse(&written, Path::new("f.toml")).unwrap(), config, "{written}");
        }
        assert_eq!(Config::parse("", Path::new("f.toml")).unwrap().migration, None);
    }

    /// Each text with the error expected for it, behind the name of the file.
    fn check(cases: &[(&str, &str)]) {
        for (text, expected) in cases {
            assert_eq!(parse(text).unwrap_err().to_string(), format!("f.toml:{expected}"));
        }
    }

    #[test]
    fn addresses_that_are_none_are_named_with_their_fix() {
        let must = "must be a host's name or address and a port, like \"host-b.example:4790\" or \"[fd00::2]:4790\"";
        for host in [
            "b",
            "b:0",
            "a b:1",
            "fd00::2:1",
            ":1",
            "-b:1",
            "b:65536",
            "b-:1",
            "b-.example:1",
            "256.0.0.1:1",
            "host.7:1",
            "7:1",
        ] {
            let expected = format!("2: migration.hosts[0] = \"{host}\": {must}");
            check(&[(&format!("hosts = [\"{host}\"]"), &expected)]);
        }
        let must = "must be an address of this host and a port, like \"10.0.0.1:4790\" or \"[fd00::1]:4790\"";
        for listen in ["4790", "[::]:0", "b.example:4790"] {
            let expected = format!("2: migration.listen = \"{listen}\": {must}");
            check(&[(&format!("listen = \"{listen}\""), &expected)]);
        }
        let twice = "2: migration.hosts = [\"b:1\", \"b:1\"]: b:1 is there twice; remove one";
        check(&[("hosts = [\"b:1\", \"b:1\"]", twice)]);
        let many: Vec<_> = (0..=MAX_HOSTS).map(|n| format!("\"h{n}:1\"")).collect();
        let error = parse(&format!("hosts = [{}]\nplain = true\n", many.join(", "))).unwrap_err();
        assert!(error.to_string().ends_with("65 are too many; name at most 64"), "{error}");
    }

    #[test]
    fn what_is_missing_or_has_no_effect_is_named_with_its_fix() {
        let host = "hosts = [\"b:1\"]\n";
        let missing = |key: &str, file: &str| {
            format!(
                "1: migration.{key}: missing; add {key} = \"/etc/floodway/migration/{file}\", or plain = true if nobody else can send or listen between \
                 the hosts"
            )
        };
        let some = format!("{host}certificate = \"/c\"\n");
        let most = format!("{some}key = \"/k\"\nplain = false\n");
        check(&[
            (host, &missing("certificate", "host.pem")),
            (&some, &missing("key", "host.key")),
            (&most, &missing("authorities", "ca.pem")),
            (
                "plain = true\n",
                "1: migration: has neither listen nor hosts, so no connection could go along; add listen = \"10.0.0.1:4790\" where VMs move to, and hosts = \
                 [\"10.0.0.2:4790\"] where they come from",
            ),
            (
                &format!("{host}certificate = \"c.pem\"\n"),
                "3: migration.certificate = \"c.pem\": must be the whole path of a PEM file, like \"/etc/floodway/migration/host.pem\"",
            ),
            (
                &format!("{host}plain = true\nkey = \"/k\"\n"),
                "4: migration.key = \"/k\": has no effect with plain = true, which encrypts nothing and knows nobody; remove one of them",
            ),
            (
                &format!("{host}plain = \"yes\"\n"),
                "3: migration.plain = \"yes\": must be true or false",
            ),
            ("host = 1", "2: migration.host: unknown key; did you mean \"hosts\"?"),
        ]);
    }
}
