//! An identity: the certificates and key that a process shows to its peers, loaded from a
//! directory and reloaded when the files change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::hmac;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, TrustAnchor, UnixTime};
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, KeyUsage};

use crate::cert::{CA_FILE, CERT_FILE, CertError, KEY_FILE, Principal, read_text};
use crate::tls;

/// A loaded identity. Cheap to clone; immutable: a reload makes a new one.
#[derive(Debug, Clone)]
pub struct Identity {
    dir: PathBuf,
    stamp: Stamp,
    principal: Principal,
    not_after: SystemTime,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) certified: Arc<CertifiedKey>,
    /// Signs stateless resets; the same in every process with this private key.
    pub(crate) reset_key: Arc<hmac::Key>,
}

/// What tells that a file changed: time of change in ns, inode and size, of each of the three.
type Stamp = [(i64, u64, u64); 3];

impl Identity {
    /// Loads `ca.pem`, `cert.pem` and `key.pem` from `dir`, and checks that they belong
    /// together and are valid now.
    ///
    /// # Errors
    /// [`CertError`] naming the file and what is wrong with it.
    pub fn load(dir: &Path) -> Result<Self, CertError> {
        Self::load_at(dir, SystemTime::now())
    }

    /// [`Identity::load`], with the validity checked at `now`.
    ///
    /// # Errors
    /// As [`Identity::load`].
    pub fn load_at(dir: &Path, now: SystemTime) -> Result<Self, CertError> {
        // Stamped before reading: a change in between is then seen by the next check.
        let stamp = stamp_of(dir)?;
        let (ca_path, cert_path, key_path) =
            (dir.join(CA_FILE), dir.join(CERT_FILE), dir.join(KEY_FILE));
        let authorities = read_certs(&ca_path)?;
        let chain = read_certs(&cert_path)?;
        let key = PrivateKeyDer::from_pem_slice(read_text(&key_path)?.as_bytes())
            .map_err(|_| CertError::content(&key_path, "holds no private key in PEM"))?;

        let reset_key = reset_key_of(key.secret_der());
        let mut roots = RootCertStore::empty();
        for der in authorities {
            roots
                .add(der)
                .map_err(|e| CertError::content(&ca_path, e))?;
        }
        let (principal, not_after) = examine(&cert_path, &chain, &roots.roots, now)?;
        let certified = CertifiedKey::from_der(chain, key, &tls::provider())
            .map_err(|_| CertError::Mismatch(key_path))?;
        Ok(Self {
            dir: dir.to_owned(),
            stamp,
            principal,
            not_after,
            roots: Arc::new(roots),
            certified: Arc::new(certified),
            reset_key: Arc::new(reset_key),
        })
    }

    /// Who this is.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// When the certificate's validity ends.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The same in seconds since 1970, for `cert_not_after_seconds`.
    #[must_use]
    pub fn not_after_s(&self) -> u64 {
        crate::cert::left(self.not_after, UNIX_EPOCH).as_secs()
    }

    /// The directory it was loaded from.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Decides when to look at the files, and what to do with what is found. It owns no task and
/// reads no clock.
#[derive(Debug)]
pub struct Reloader {
    interval: Duration,
    next: Instant,
    /// The files that were refused last: the same ones are not reported twice.
    refused: Option<Stamp>,
}

/// What a look at the files gave.
#[derive(Debug)]
pub enum Reload {
    /// Not due, unchanged, or refused before.
    Unchanged,
    /// New files, good: use this identity from now on.
    Changed(Identity),
    /// New files, bad: keep the old identity, and say so once.
    Refused(CertError),
}

impl Reloader {
    /// Looks every `interval` from `now` on.
    #[must_use]
    pub fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            next: now + interval,
            refused: None,
        }
    }

    /// Looks at the files of `current` if that is due at `now`.
    pub fn poll(&mut self, current: &Identity, now: Instant, wall: SystemTime) -> Reload {
        if now < self.next {
            return Reload::Unchanged;
        }
        self.next = now + self.interval;
        self.look(current, wall)
    }

    /// Looks at once, as on SIGHUP.
    pub fn look(&mut self, current: &Identity, wall: SystemTime) -> Reload {
        // A file that is missing for a moment, between two renames, counts as a change.
        let stamp = stamp_of(&current.dir).unwrap_or_default();
        if stamp == current.stamp || self.refused == Some(stamp) {
            return Reload::Unchanged;
        }
        let loaded = Identity::load_at(&current.dir, wall).and_then(|new| {
            if new.principal == current.principal {
                return Ok(new);
            }
            let why = format!(
                "names {}, this process is {}",
                new.principal, current.principal
            );
            Err(CertError::content(&current.dir.join(CERT_FILE), why))
        });
        match loaded {
            Ok(new) => {
                self.refused = None;
                Reload::Changed(new)
            }
            Err(error) => {
                self.refused = Some(stamp);
                Reload::Refused(error)
            }
        }
    }
}

fn stamp_of(dir: &Path) -> Result<Stamp, CertError> {
    use std::os::unix::fs::MetadataExt;
    let mut stamp = Stamp::default();
    for (slot, file) in stamp.iter_mut().zip([CA_FILE, CERT_FILE, KEY_FILE]) {
        let path = dir.join(file);
        let meta = fs::metadata(&path).map_err(|e| CertError::file(&path, e))?;
        *slot = (
            meta.mtime() * 1_000_000_000 + meta.mtime_nsec(),
            meta.ino(),
            meta.len(),
        );
    }
    Ok(stamp)
}

/// A key of its own purpose, derived from the private key.
fn reset_key_of(private: &[u8]) -> hmac::Key {
    let root = hmac::Key::new(hmac::HMAC_SHA256, private);
    let derived = hmac::sign(&root, b"mneme stateless reset");
    hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref())
}

fn read_certs(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertError> {
    let text = read_text(path)?;
    let certs = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| CertError::content(path, format!("not PEM: {e:?}")))?;
    if certs.is_empty() {
        return Err(CertError::content(path, "holds no certificate in PEM"));
    }
    Ok(certs)
}

/// Checks the chain, and reads the principal and the end of its validity.
fn examine(
    path: &Path,
    chain: &[CertificateDer<'static>],
    anchors: &[TrustAnchor<'static>],
    now: SystemTime,
) -> Result<(Principal, SystemTime), CertError> {
    let (leaf, intermediates) = chain
        .split_first()
        .expect("read_certs returns at least one");
    let cert = EndEntityCert::try_from(leaf).map_err(|e| CertError::content(path, e))?;
    let principal = tls::principal_of(&cert)
        .ok_or_else(|| CertError::content(path, "names no mneme principal"))?;
    let verify = |at: Duration| {
        cert.verify_for_usage(
            tls::signature_algorithms().all,
            anchors,
            intermediates,
            UnixTime::since_unix_epoch(at),
            KeyUsage::client_auth(),
            None,
            None,
        )
        .map(|_| ())
    };
    // webpki tells the end of the validity only by failing after it.
    let not_after = match verify(Duration::from_secs(u64::MAX)) {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            UNIX_EPOCH + Duration::from_secs(not_after.as_secs())
        }
        Err(error) => return Err(CertError::content(path, error)),
        Ok(()) => return Err(CertError::content(path, "never expires")),
    };
    match verify(crate::cert::left(now, UNIX_EPOCH)) {
        Ok(()) => Ok((principal, not_after)),
        Err(webpki::Error::CertExpired { .. }) => Err(CertError::Expired {
            path: path.to_owned(),
            not_after,
        }),
        Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey) => {
            Err(CertError::OtherAuthority(path.to_owned()))
        }
        Err(error) => Err(CertError::content(path, error)),
    }
}
