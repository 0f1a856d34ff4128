//! TLS 1.3 between principals: both ends show certificates, and both check chain and role.
//!
//! A server is checked by its role and, if the dialer knows it, its name; never by its address.
//! There is no session resumption, so each link checks the certificates anew.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};
use webpki::EndEntityCert;

use mneme_proto::version::ALPN;

use crate::cert::{Principal, Role};
use crate::error::HandshakeFault;
use crate::identity::Identity;

/// The cryptography in use: ring, AES-128-GCM first (it is the fastest on CPUs with AES, and
/// as strong as the P-256 certificates).
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        let mut provider = ring::default_provider();
        provider.cipher_suites = vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        Arc::new(provider)
    };
    PROVIDER.get_or_init(make).clone()
}

pub(crate) fn signature_algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

/// The principal that a certificate names, if it names exactly one.
pub(crate) fn principal_of(cert: &EndEntityCert<'_>) -> Option<Principal> {
    let mut found = cert.valid_dns_names().filter_map(Principal::from_dns_name);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// The principal of a peer's certificate chain.
pub(crate) fn principal_of_chain(chain: &[CertificateDer<'_>]) -> Option<Principal> {
    principal_of(&EndEntityCert::try_from(chain.first()?).ok()?)
}

/// The server half's TLS configuration.
pub(crate) fn server_config(identity: &Identity) -> Result<rustls::ServerConfig, rustls::Error> {
    let chain = WebPkiClientVerifier::builder_with_provider(identity.roots.clone(), provider())
        .build()
        .map_err(|e| rustls::Error::General(e.to_string()))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(DialerCheck { chain }))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified.clone())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The dialer's TLS configuration, for one link; `verdict` receives what its check found.
pub(crate) fn client_config(
    identity: &Identity,
    expect: Expected,
    verdict: Verdict,
) -> Result<rustls::ClientConfig, rustls::Error> {
    let check = ServerCheck {
        roots: identity.roots.clone(),
        expect,
        verdict,
    };
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(check))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified.clone())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// Whom a dialer wants to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The role that the peer's certificate must have.
    pub role: Role,
    /// The name it must have, where the dialer knows it.
    pub name: Option<String>,
}

impl From<Role> for Expected {
    fn from(role: Role) -> Self {
        Self { role, name: None }
    }
}

impl From<&Principal> for Expected {
    fn from(principal: &Principal) -> Self {
        Self {
            role: principal.role,
            name: Some(principal.name.clone()),
        }
    }
}

impl Expected {
    /// Whether `found` is who was wanted.
    fn check(&self, found: &Principal) -> Result<(), HandshakeFault> {
        if found.role != self.role {
            return Err(HandshakeFault::Role {
                wanted: self.role,
                found: found.clone(),
            });
        }
        match &self.name {
            Some(name) if *name != found.name => Err(HandshakeFault::Name {
                wanted: name.clone(),
                found: found.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// Where a check leaves its finding: the QUIC library passes on only a text.
pub(crate) type Verdict = Arc<OnceLock<HandshakeFault>>;

/// Checks a server's certificate: chain, purpose, role and name.
#[derive(Debug)]
struct ServerCheck {
    roots: Arc<RootCertStore>,
    expect: Expected,
    verdict: Verdict,
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let chain = ParsedCertificate::try_from(end_entity).and_then(|cert| {
            rustls::client::verify_server_cert_signed_by_trust_anchor(
                &cert,
                &self.roots,
                intermediates,
                now,
                signature_algorithms().all,
            )
        });
        let checked = match chain {
            Ok(()) => principal_of_chain(std::slice::from_ref(end_entity))
                .ok_or(HandshakeFault::NoPrincipal)
                .and_then(|found| self.expect.check(&found)),
            Err(error) => Err(HandshakeFault::of_certificate(&error)),
        };
        checked
            .map(|()| ServerCertVerified::assertion())
            .map_err(|fault| {
                // The first finding stands: a handshake checks once.
                let _ = self.verdict.set(fault);
                CertificateError::ApplicationVerificationFailure.into()
            })
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = signature_algorithms();
        rustls::crypto::verify_tls13_signature(message, cert, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        signature_algorithms().supported_schemes()
    }
}

/// Checks a dialer's certificate: chain and purpose by rustls, and that it names a principal.
#[derive(Debug)]
struct DialerCheck {
    chain: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for DialerCheck {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self
            .chain
            .verify_client_cert(end_entity, intermediates, now)?;
        match principal_of_chain(std::slice::from_ref(end_entity)) {
            Some(_) => Ok(verified),
            None => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

impl HandshakeFault {
    /// What rustls found wrong with a peer's certificate.
    fn of_certificate(error: &rustls::Error) -> Self {
        let rustls::Error::InvalidCertificate(error) = error else {
            return Self::Other(error.to_string());
        };
        match error {
            CertificateError::ExpiredContext { not_after, .. } => Self::Expired {
                whose: "the peer's",
                not_after: Some(UNIX_EPOCH + Duration::from_secs(not_after.as_secs())),
            },
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::OtherAuthority
            }
            other => Self::Other(other.to_string()),
        }
    }
}
