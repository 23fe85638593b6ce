//! Certificates: which hosts are believed, and how this one shows who it is.
//!
//! TLS 1.3 alone, both ways with certificates. Files are read again when one of them has changed: certificates are renewed while switches run. What cannot be used then
//! is reported, and the last that could be used stays.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::link::{Link, LinkError, Timed};

/// How hosts know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Not at all.
    Plain,
    /// By certificates.
    Certificates(Files),
}

impl Trust {
    /// Reads the files, as [`Moves::start`](super::Moves::start) does.
    ///
    /// # Errors
    /// One cannot be used.
    pub fn check(&self) -> Result<(), TrustError> {
        Keys::load(self).map(drop)
    }
}

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The host's certificate, and those that lead to the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates of the authorities of other hosts' certificates.
    pub authorities: PathBuf,
}

/// A file that cannot be used: names the field and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("migration.{field} = \"{}\": {problem}", path.display())]
pub struct TrustError {
    field: &'static str,
    path: PathBuf,
    problem: String,
}

/// What connections are made with.
pub(crate) enum Keys {
    Plain,
    Tls { files: Files, loaded: Box<Mutex<Loaded>> },
}

/// What tells a file from others at its path, and from itself before a change. A tool that keeps times of change (`cp -p`) cannot keep the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            inode: (found.dev(), found.ino()),
            bytes: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

#[derive(Clone)]
pub(crate) struct Loaded {
    changed: [Option<Stamp>; 3],
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Keys {
    /// Reads what `trust` names.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn load(trust: &Trust) -> Result<Self, TrustError> {
        match trust {
            Trust::Plain => Ok(Self::Plain),
            Trust::Certificates(files) => {
                let loaded = Box::new(Mutex::new(files.load()?));
                Ok(Self::Tls { files: files.clone(), loaded })
            }
        }
    }

    /// A connection to the host `name`, whose certificate has to be for that.
    ///
    /// # Errors
    /// `name` can be in no certificate.
    pub(crate) fn connect(&self, name: &str, socket: Timed) -> Result<Link, LinkError> {
        let Some(loaded) = self.current() else { return Ok(Link::plain(socket)) };
        let name = ServerName::try_from(name.to_owned()).map_err(|_| LinkError::Stranger)?;
        let connection = ClientConnection::new(loaded.client, name).map_err(failed)?;
        Ok(Link::client(connection, socket))
    }

    /// A connection of another host.
    ///
    /// # Errors
    /// Memory has run out.
    pub(crate) fn accept(&self, socket: Timed) -> Result<Link, LinkError> {
        let Some(loaded) = self.current() else { return Ok(Link::plain(socket)) };
        let connection = ServerConnection::new(loaded.server).map_err(failed)?;
        Ok(Link::server(connection, socket))
    }

    fn current(&self) -> Option<Loaded> {
        let Self::Tls { files, loaded } = self else { return None };
        let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = files.changed();
        if changed != loaded.changed {
            match files.load() {
                Ok(next) => *loaded = next,
                Err(error) => {
                    tracing::error!(%error, "the certificates cannot be loaded again; those loaded before stay in use");
                    loaded.changed = changed;
                }
            }
        }
        Some(loaded.clone())
    }
}

fn failed(error: rustls::Error) -> LinkError {
    LinkError::System(std::io::Error::other(error))
}

impl Files {
    fn changed(&self) -> [Option<Stamp>; 3] {
        [&self.certificate, &self.key, &self.authorities].map(|path| Stamp::of(path))
    }

    fn load(&self) -> Result<Loaded, TrustError> {
        let changed = self.changed();
        let chain = certificates("certificate", &self.certificate)?;
        let key = self.key()?;
        let roots = Arc::new(self.roots()?);
        let provider = Arc::new(ring::default_provider());
        let refuse = |error: rustls::Error| self.refuse_key(&error);
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let verifier = verifier.build().map_err(|error| {
            fault(
                "authorities",
                &self.authorities,
                format!("{error}; name the certificates of your authority"),
            )
        })?;
        let mut server = server
            .with_protocol_versions(&[&TLS13])
            .map_err(refuse)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(refuse)?;
        // Nothing is resumed, and what comes on a connection is a message.
        server.send_tls13_tickets = 0;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(refuse)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(refuse)?;
        Ok(Loaded { changed, client: Arc::new(client), server: Arc::new(server) })
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TrustError> {
        PrivateKeyDer::from_pem_file(&self.key).map_err(|error| {
            let problem = format!(
                "{error}; name a PEM file with a private key that the user of the switch can read"
            );
            fault("key", &self.key, problem)
        })
    }

    fn roots(&self) -> Result<RootCertStore, TrustError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("authorities", &self.authorities)? {
            roots.add(certificate).map_err(|error| {
                fault(
                    "authorities",
                    &self.authorities,
                    format!("{error}; name X.509 certificates of version 3"),
                )
            })?;
        }
        Ok(roots)
    }

    fn refuse_key(&self, error: &rustls::Error) -> TrustError {
        let problem = format!(
            "is not the key of {}, or TLS 1.3 has no such keys: {error}; make a new pair",
            self.certificate.display()
        );
        fault("key", &self.key, problem)
    }
}

fn certificates(
    field: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let fix = "name a PEM file with certificates that the user of the switch can read";
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all {
        Ok(all) if all.is_empty() => {
            Err(fault(field, path, format!("holds no certificate; {fix}")))
        }
        Ok(all) => Ok(all),
        Err(error) => Err(fault(field, path, format!("{error}; {fix}"))),
    }
}

fn fault(field: &'static str, path: &Path, problem: String) -> TrustError {
    TrustError { field, path: path.to_owned(), problem }
}
