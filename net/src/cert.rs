//! The certificate authority of a cluster, and the principals that its certificates name.
//!
//! A certificate says who a peer is by one DNS name, `<name>.<role>.mneme`, never where it is:
//! addresses change, principals do not. Nodes and catalogue members may serve and dial; the
//! certificate of a client or an admin is for dialing only, so that it cannot pose as a server.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::DnsName;

use crate::date::utc;
use crate::limits::{AUTHORITY_VALIDITY, CERT_BACKDATE, CERT_FILE_BYTES_MAX, CERT_VALIDITY};

/// The authority's certificates (several while it is being replaced).
pub const CA_FILE: &str = "ca.pem";
/// The authority's private key, in the authority's directory only.
pub const CA_KEY_FILE: &str = "ca.key";
/// A principal's certificate.
pub const CERT_FILE: &str = "cert.pem";
/// A principal's private key.
pub const KEY_FILE: &str = "key.pem";

/// The domain under which principals are named.
const DOMAIN: &str = "mneme";

/// What a principal may be on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A member of the catalogue.
    Catalogue,
    /// A storage node.
    Node,
    /// Anything that only asks, and may what it is granted.
    Client,
    /// A client that may everything: whom the cluster belongs to.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Catalogue, Self::Node, Self::Client, Self::Admin];

    /// The word in certificates and messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Catalogue => "catalogue",
            Self::Node => "node",
            Self::Client => "client",
            Self::Admin => "admin",
        }
    }

    /// Whether a certificate of this role may answer dialers.
    #[must_use]
    pub const fn may_serve(self) -> bool {
        matches!(self, Self::Catalogue | Self::Node)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Who a peer is, as its certificate says. Displays as `role 'name'`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// What it may be.
    pub role: Role,
    /// Its name within the role.
    pub name: String,
}

impl Principal {
    /// The DNS name that a certificate carries for it: `<name>.<role>.mneme`.
    #[must_use]
    pub fn dns_name(&self) -> String {
        format!("{}.{}.{DOMAIN}", self.name, self.role)
    }

    /// The principal of a certificate's DNS name; `None` if it names none.
    #[must_use]
    pub fn from_dns_name(name: &str) -> Option<Self> {
        let rest = name.strip_suffix(DOMAIN)?.strip_suffix('.')?;
        let (name, role) = rest.rsplit_once('.')?;
        let role = Role::ALL.into_iter().find(|r| r.word() == role)?;
        (!name.is_empty()).then(|| Self {
            role,
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}'", self.role, self.name)
    }
}

/// Why certificates could not be made or loaded. Each names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// Reading or writing a file failed.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An authority is there already.
    #[error("{} holds an authority already: what it issued would lose its issuer", .0.display())]
    AuthorityExists(PathBuf),
    /// A name that cannot stand in a certificate.
    #[error("'{0}' cannot name a principal: use letters, digits, '-', '_' and '.'")]
    Name(String),
    /// A file holds something else than it should.
    #[error("{}: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The key is not the certificate's: a pair half written, or of two issues.
    #[error("{}: the key does not belong to the certificate beside it", .0.display())]
    Mismatch(PathBuf),
    /// The certificate was not issued by the authority beside it.
    #[error("{}: not issued by the authority in {CA_FILE} beside it", .0.display())]
    OtherAuthority(PathBuf),
    /// The certificate's time is over.
    #[error("{}: the certificate expired on {}: issue a new one", path.display(), utc(*not_after))]
    Expired {
        /// The certificate.
        path: PathBuf,
        /// The end of its validity.
        not_after: SystemTime,
    },
    /// A client's certificate where a server's is needed.
    #[error("the certificate of {0} may not serve: issue one for a node or a catalogue member")]
    MayNotServe(Principal),
    /// The cryptography library refused.
    #[error("making a certificate failed: {0}")]
    Make(String),
}

impl CertError {
    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn content(path: &Path, why: impl fmt::Display) -> Self {
        Self::Content {
            path: path.to_owned(),
            why: why.to_string(),
        }
    }
}

impl From<rcgen::Error> for CertError {
    fn from(error: rcgen::Error) -> Self {
        Self::Make(error.to_string())
    }
}

/// Makes a certificate authority in `dir`: `ca.pem` and `ca.key` (mode 0600).
///
/// # Errors
/// [`CertError::AuthorityExists`] if one is there; nothing is overwritten. [`CertError::File`].
pub fn init_authority(dir: &Path) -> Result<(), CertError> {
    fs::create_dir_all(dir).map_err(|e| CertError::file(dir, e))?;
    let (ca_path, key_path) = (dir.join(CA_FILE), dir.join(CA_KEY_FILE));
    if ca_path.exists() || key_path.exists() {
        return Err(CertError::AuthorityExists(dir.to_owned()));
    }
    let key = KeyPair::generate()?;
    let mut params = authority_params(&key);
    let now = SystemTime::now();
    params.not_before = (now - CERT_BACKDATE).into();
    params.not_after = (now + AUTHORITY_VALIDITY).into();
    let cert = params.self_signed(&key)?;
    write_file(&key_path, &key.serialize_pem(), 0o600)?;
    write_file(&ca_path, &cert.pem(), 0o644)
}

/// Issues a certificate for the principal `role`, `name`: `ca.pem`, `cert.pem` and `key.pem`
/// (mode 0600) in `out`, valid from an hour ago for 398 days. Files that are there are
/// replaced one by one, each whole: a process that watches `out` never sees half a file, and
/// keeps what it has while key and certificate are of two issues.
///
/// # Errors
/// [`CertError`]; an unusable name or authority changes nothing in `out`.
pub fn issue(authority: &Path, role: Role, name: &str, out: &Path) -> Result<(), CertError> {
    let now = SystemTime::now();
    let until = now + CERT_VALIDITY;
    issue_between(authority, role, name, out, now - CERT_BACKDATE, until)
}

/// [`issue`] with a validity of the caller's choice.
///
/// # Errors
/// As [`issue`].
pub fn issue_between(
    authority: &Path,
    role: Role,
    name: &str,
    out: &Path,
    not_before: SystemTime,
    not_after: SystemTime,
) -> Result<(), CertError> {
    let principal = Principal {
        role,
        name: name.to_owned(),
    };
    let dns_name = principal.dns_name();
    if Principal::from_dns_name(&dns_name).as_ref() != Some(&principal)
        || DnsName::try_from(dns_name.as_str()).is_err()
    {
        return Err(CertError::Name(name.to_owned()));
    }
    let key_path = authority.join(CA_KEY_FILE);
    let ca_pem = read_text(&authority.join(CA_FILE))?;
    let ca_key =
        KeyPair::from_pem(&read_text(&key_path)?).map_err(|e| CertError::content(&key_path, e))?;
    let issuer = Issuer::new(authority_params(&ca_key), ca_key);

    let mut params = CertificateParams::new([dns_name])?;
    params.distinguished_name = common_name(&principal.to_string());
    params.not_before = not_before.into();
    params.not_after = not_after.into();
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if role.may_serve() {
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, &issuer)?;

    fs::create_dir_all(out).map_err(|e| CertError::file(out, e))?;
    write_file(&out.join(CA_FILE), &ca_pem, 0o644)?;
    write_file(&out.join(KEY_FILE), &key.serialize_pem(), 0o600)?;
    write_file(&out.join(CERT_FILE), &cert.pem(), 0o644)
}

/// The authority's certificate but for its dates. Its name holds the start of its public key,
/// so that two authorities never share a name and the key alone gives the name back.
fn authority_params(key: &KeyPair) -> CertificateParams {
    let point = key.public_key_raw();
    let id: String = point
        .iter()
        .skip(1)
        .take(8)
        .map(|b| format!("{b:02x}"))
        .collect();
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&format!("mneme authority {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

/// Reads a small text file; one that is too large is refused unread (I-12).
pub(crate) fn read_text(path: &Path) -> Result<String, CertError> {
    let bytes = fs::metadata(path)
        .map_err(|e| CertError::file(path, e))?
        .len();
    if bytes > CERT_FILE_BYTES_MAX {
        return Err(CertError::content(
            path,
            format!("{bytes} B are no PEM file"),
        ));
    }
    fs::read_to_string(path).map_err(|e| CertError::file(path, e))
}

/// Writes a file whole: a temporary name, fsync, rename, fsync of the directory.
fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), CertError> {
    use std::os::unix::fs::OpenOptionsExt;
    let temporary = path.with_extension(format!("tmp-{}", std::process::id()));
    let write = || -> io::Result<()> {
        // A leftover of a crash would keep its own mode.
        match fs::remove_file(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(|e| {
        // What could not become the file is not left beside it; the first error is the one
        // that counts.
        let _ = fs::remove_file(&temporary);
        CertError::file(path, e)
    })
}

/// How long after `now` a certificate is valid; zero once it is over.
#[must_use]
pub fn left(not_after: SystemTime, now: SystemTime) -> Duration {
    not_after.duration_since(now).unwrap_or(Duration::ZERO)
}
