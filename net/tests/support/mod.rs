//! What the tests of links share: an authority in a temporary directory, and a node that echoes.

#![allow(dead_code)] // each test file uses its part

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mneme_net::{Endpoint, Identity, Link, LinkOptions, Request, Role, init_authority, issue};
use mneme_proto::frame::FrameKind;
use tempfile::TempDir;

/// An authority and the identities that it issued.
pub struct Authority {
    dir: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        init_authority(&dir.path().join("authority")).expect("a new authority");
        Self { dir }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("authority")
    }

    /// The directory of a principal's files.
    pub fn dir_of(&self, role: Role, name: &str) -> PathBuf {
        self.dir.path().join(format!("{role}-{name}"))
    }

    pub fn identity(&self, role: Role, name: &str) -> Identity {
        let out = self.dir_of(role, name);
        issue(&self.path(), role, name, &out).expect("a certificate");
        Identity::load(&out).expect("an identity")
    }

    pub fn node(&self) -> Endpoint {
        self.node_with(LinkOptions::default())
    }

    pub fn node_with(&self, options: LinkOptions) -> Endpoint {
        let identity = self.identity(Role::Node, "n1");
        Endpoint::bind(loopback(), identity, options).expect("a free port")
    }

    pub fn dialer(&self) -> Endpoint {
        self.dialer_with(LinkOptions::default())
    }

    pub fn dialer_with(&self, options: LinkOptions) -> Endpoint {
        Endpoint::dialer(self.identity(Role::Client, "c1"), options).expect("a free port")
    }
}

pub fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub fn in_ms(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

/// Long enough for a busy machine, short enough to fail a test that hangs.
pub fn soon() -> Instant {
    in_ms(20_000)
}

/// Waits for a condition.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = soon();
    while !condition() {
        assert!(Instant::now() < deadline, "did not come to be: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Answers every pull with its own body; requests of other kinds are held and never answered.
pub fn echo(endpoint: &Endpoint) {
    let endpoint = endpoint.clone();
    tokio::spawn(async move {
        while let Some(link) = endpoint.accept().await {
            tokio::spawn(echo_link(link));
        }
    });
}

async fn echo_link(link: Link) {
    while let Some(request) = link.next().await {
        tokio::spawn(echo_request(request));
    }
}

async fn echo_request(mut request: Request) {
    match request.read().await {
        Ok((_, FrameKind::Pull, body)) => {
            let chunks: Vec<Bytes> = body.chunks().cloned().collect();
            // A caller that gave up is part of the tests.
            let _ = request.answer(FrameKind::Pulled, chunks).await;
        }
        Ok(_) => request.given_up().await,
        Err(_) => {}
    }
}

/// A good call, to see that a link works.
pub async fn check(link: &Link) {
    let body = Bytes::from_static(b"are you there");
    let answer = link
        .call(FrameKind::Pull, 7, vec![body.clone()], soon())
        .await
        .expect("an answer");
    assert_eq!(answer.kind, FrameKind::Pulled);
    assert_eq!(answer.body.into_contiguous(), body);
}

/// A plain QUIC configuration with the certificates of `identity_dir` (or none), and any ALPN.
pub mod raw {
    use std::path::Path;
    use std::sync::Arc;

    use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::ring;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, SignatureScheme};

    type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

    fn pair(dir: &Path) -> Pair {
        let cert = CertificateDer::from_pem_file(dir.join("cert.pem")).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(dir.join("key.pem")).expect("a key");
        (vec![cert], key)
    }

    /// Trusts any server: what the mneme server does is under test, not this client.
    #[derive(Debug)]
    struct AnyServer;

    impl ServerCertVerifier for AnyServer {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            ring::default_provider()
                .signature_verification_algorithms
                .supported_schemes()
        }
    }

    pub fn client(dir: Option<&Path>, alpn: &[u8]) -> quinn::ClientConfig {
        let builder =
            rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .expect("TLS 1.3 is there")
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyServer));
        let mut config = match dir.map(pair) {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).expect("a pair"),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        quinn::ClientConfig::new(Arc::new(
            QuicClientConfig::try_from(config).expect("AES-128 is there"),
        ))
    }

    /// A server that shows the certificate of `dir`, asks for none, and never answers.
    pub fn server(dir: &Path, alpn: &[u8]) -> quinn::Endpoint {
        let (chain, key) = pair(dir);
        let mut config =
            rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .expect("TLS 1.3 is there")
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .expect("a pair");
        config.alpn_protocols = vec![alpn.to_vec()];
        let crypto = QuicServerConfig::try_from(config).expect("AES-128 is there");
        let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        let endpoint = quinn::Endpoint::server(config, super::loopback()).expect("a free port");
        let accepting = endpoint.clone();
        tokio::spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                tokio::spawn(async move {
                    // Held until the dialer closes it; a failed handshake is the dialer's news.
                    if let Ok(connection) = incoming.await {
                        connection.closed().await;
                    }
                });
            }
        });
        endpoint
    }

    /// A dialing socket.
    pub fn endpoint() -> quinn::Endpoint {
        quinn::Endpoint::client(super::loopback()).expect("a free port")
    }
}
