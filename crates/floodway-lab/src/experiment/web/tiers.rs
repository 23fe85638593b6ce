//! The four VMs of the application: stock Debian programs, and the files that make them one application.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::agent::{Agent, Spawned};
use crate::experiment::testbed::Network;
use crate::guest_image::{Contents, GuestImage, Packages};
use crate::kernel::{Kernel, Series};

/// All packages, the load generator's too, with the libraries that a host is not sure to have.
const PACKAGES: [&str; 27] = [
    "libapparmor1",
    "libargon2-1",
    "libatomic1",
    "libevent-2.1-7",
    "libhashkit2",
    "libicu72",
    "libjemalloc2",
    "liblua5.1-0",
    "libluajit-5.1-2",
    "libluajit2-5.1-2",
    "liblzf1",
    "libmemcached11",
    "libsasl2-2",
    "libsodium23",
    "libsystemd0",
    "libxml2",
    "memcached",
    "nginx",
    "php8.2-common",
    "php8.2-fpm",
    "php8.2-igbinary",
    "php8.2-memcached",
    "php8.2-msgpack",
    "php8.2-opcache",
    "php8.2-redis",
    "redis-tools",
    "wrk",
];
/// Where PHP looks for its modules.
const PHP_MODULES: [&str; 5] = ["opcache", "igbinary", "msgpack", "redis", "memcached"];
/// Bytes of the file that the web server has itself.
const STYLE_BYTES: usize = 40_000;
/// How long a daemon may take until it listens. Ends a run that hangs.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const START_POLL: Duration = Duration::from_millis(100);

/// A VM of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// nginx: takes the visitors' requests, and has the static files.
    Front,
    /// PHP-FPM with the application.
    Application,
    /// Redis, as the application's database.
    Database,
    /// memcached, for rendered fragments of pages.
    Cache,
}

impl Tier {
    /// In the order of their addresses.
    pub const ALL: [Self; 4] = [Self::Front, Self::Application, Self::Database, Self::Cache];

    /// Of the VM and its port on the switch.
    pub fn name(self) -> &'static str {
        match self {
            Self::Front => "front",
            Self::Application => "app",
            Self::Database => "database",
            Self::Cache => "cache",
        }
    }

    /// Address of its VM.
    ///
    /// # Errors
    /// Never, as there are few tiers.
    pub fn address(self) -> Result<String> {
        Network::Floodway.guest_address(self as usize)
    }

    /// Where it listens.
    pub fn port(self) -> u16 {
        match self {
            Self::Front => 80,
            Self::Application => 9000,
            Self::Database => 6379,
            Self::Cache => 11211,
        }
    }

    /// The image of its VM.
    ///
    /// # Errors
    /// As [`GuestImage::build`]; or a file is in none of the packages.
    pub fn image(self, series: Series, packages: &Packages) -> Result<GuestImage> {
        let modules = PHP_MODULES.map(|name| format!("/usr/lib/php/20220829/{name}.so"));
        let mut programs = vec![self.program()];
        if self == Self::Application {
            programs.extend(modules.iter().map(String::as_str));
        }
        let files: Vec<(PathBuf, String)> = packages.with_libraries(&programs)?;
        GuestImage::build(&Kernel::fetch(series)?, &Contents { files, ..Contents::default() })
            .with_context(|| format!("image of `{}`", self.name()))
    }

    fn program(self) -> &'static str {
        match self {
            Self::Front => "/usr/sbin/nginx",
            Self::Application => "/usr/sbin/php-fpm8.2",
            // Redis is one program under several names.
            Self::Database => "/usr/bin/redis-check-rdb",
            Self::Cache => "/usr/bin/memcached",
        }
    }

    /// Files in the VM, and their contents.
    fn files(self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(match self {
            Self::Front => vec![
                ("/etc/nginx.conf", filled(include_str!("files/nginx.conf"))?),
                ("/srv/static/style.css", b"/* */\n".repeat(STYLE_BYTES / 6)),
            ],
            Self::Application => vec![
                ("/etc/php-fpm.conf", filled(include_str!("files/php-fpm.conf"))?),
                ("/etc/php.ini", include_bytes!("files/php.ini").to_vec()),
                ("/srv/index.php", include_bytes!("files/index.php").to_vec()),
            ],
            Self::Database | Self::Cache => Vec::new(),
        })
    }

    fn command(self) -> Vec<&'static str> {
        match self {
            Self::Front => vec!["nginx", "-c", "/etc/nginx.conf", "-g", "daemon off;"],
            Self::Application => vec![
                "php-fpm8.2",
                "--allow-to-run-as-root",
                "--php-ini",
                "/etc/php.ini",
                "--fpm-config",
                "/etc/php-fpm.conf",
            ],
            // In memory only, as the VM has no disk.
            Self::Database => vec![
                "redis-server",
                "--bind",
                "0.0.0.0",
                "--protected-mode",
                "no",
                "--save",
                "",
                "--appendonly",
                "no",
            ],
            Self::Cache => vec!["memcached", "-u", "root", "-l", "0.0.0.0", "-m", "64", "-t", "1"],
        }
    }

    /// Starts it in its VM, and waits until it listens. It ends with the VM.
    ///
    /// # Errors
    /// When it ends or does not listen; the error has what it said.
    pub fn start(self, agent: &Agent) -> Result<()> {
        self.prepare(agent)?;
        let daemon = agent.spawn(&self.command())?;
        let deadline = Instant::now() + START_TIMEOUT;
        let port = format!(":{}", self.port());
        while !listens(agent, &port)? {
            let ended = agent.wait(&daemon, START_POLL)?.is_some();
            ensure!(
                !ended && Instant::now() < deadline,
                "`{}` does not listen: {}",
                self.name(),
                said(agent, &daemon)?
            );
        }
        Ok(())
    }

    fn prepare(self, agent: &Agent) -> Result<()> {
        for (path, content) in self.files()? {
            agent.put(&content, path, 0o644)?;
        }
        match self {
            // Compiled in as the first place of its log.
            Self::Front => agent.exec(&["mkdir", "-p", "/var/log/nginx", "/tmp"]).map(drop),
            Self::Database => {
                agent.exec(&["ln", "-s", "redis-check-rdb", "/usr/bin/redis-server"]).map(drop)
            }
            Self::Application | Self::Cache => agent.exec(&["mkdir", "-p", "/tmp"]).map(drop),
        }
    }
}

/// The packages of all tiers and of the load generator.
///
/// # Errors
/// As [`Packages::fetch`].
pub fn packages() -> Result<Packages> {
    Packages::fetch(&PACKAGES)
}

/// A configuration with the tiers' addresses in it.
fn filled(template: &str) -> Result<Vec<u8>> {
    let mut text = template.to_owned();
    for tier in Tier::ALL {
        text = text.replace(&format!("@{}@", tier.name().to_uppercase()), &tier.address()?);
    }
    ensure!(!text.contains('@'), "a placeholder is left in {text}");
    Ok(text.into_bytes())
}

fn listens(agent: &Agent, port: &str) -> Result<bool> {
    let sockets = agent.exec(&["ss", "-H", "-l", "-t", "-n"])?.stdout_text();
    let local = |line: &str| line.split_whitespace().nth(3).is_some_and(|it| it.ends_with(port));
    Ok(sockets.lines().any(local))
}

fn said(agent: &Agent, daemon: &Spawned) -> Result<String> {
    let [stdout, stderr] = [&daemon.stdout, &daemon.stderr].map(|path| agent.get(path));
    let text = [stdout?, stderr?].concat();
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_of_every_file_is_filled() {
        for tier in Tier::ALL {
            for (path, content) in tier.files().unwrap() {
                let text = String::from_utf8(content).unwrap();
                assert!(!text.contains("@APP@") && !text.is_empty(), "{path}");
            }
        }
        let pool = String::from_utf8(filled(include_str!("files/php-fpm.conf")).unwrap()).unwrap();
        assert!(pool.contains("env[DATABASE] = 198.18.1.13\n"), "{pool}");
        assert!(pool.contains("env[CACHE] = 198.18.1.14\n"), "{pool}");
        assert!(filled("@NOBODY@").is_err());
    }

    #[test]
    fn tiers_have_addresses_in_their_order() {
        let addresses = Tier::ALL.map(|tier| tier.address().unwrap());
        assert_eq!(addresses, ["198.18.1.11", "198.18.1.12", "198.18.1.13", "198.18.1.14"]);
    }
}
