//! QUIC connections that misbehave: any certificate or none, any ALPN, any bytes.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

/// Longest wait for an answer or an end.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Trusts any server: the server is under test, not this client.
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

/// A client configuration with the certificate in `dir` (`cert.pem`, `key.pem`), or none.
///
/// # Panics
/// If the files cannot be used.
#[must_use]
pub fn client(dir: Option<&Path>, alpn: &[u8]) -> quinn::ClientConfig {
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3 is there")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
    let mut config = match dir {
        Some(dir) => {
            let cert = CertificateDer::from_pem_file(dir.join("cert.pem")).expect("a certificate");
            let key = PrivateKeyDer::from_pem_file(dir.join("key.pem")).expect("a key");
            builder
                .with_client_auth_cert(vec![cert], key)
                .expect("a pair")
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let crypto = QuicClientConfig::try_from(config).expect("AES-128 is there");
    quinn::ClientConfig::new(Arc::new(crypto))
}

/// Whether a stream on a new connection with `config` gets anything but an end: with TLS 1.3 a
/// client may believe that it is connected before the server refuses its certificate.
pub async fn is_let_in(server: SocketAddr, config: quinn::ClientConfig) -> bool {
    let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a free port");
    let connecting = endpoint
        .connect_with(config, server, "mneme")
        .expect("a valid configuration");
    let Ok(connection) = connecting.await else {
        return false;
    };
    !matches!(exchange(&connection, b"let me in").await, Exchange::Closed)
}

/// What came of bytes sent on a new stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Bytes came back.
    Answered(Vec<u8>),
    /// The stream was reset or stopped; the connection goes on.
    Reset,
    /// The connection is closed.
    Closed,
}

/// Sends bytes as a whole request and waits for the end of the answer.
///
/// # Panics
/// If neither an answer nor an end comes: a peer that hangs is at fault.
pub async fn exchange(connection: &quinn::Connection, bytes: &[u8]) -> Exchange {
    let Ok((mut send, mut recv)) = connection.open_bi().await else {
        return Exchange::Closed;
    };
    // The peer may stop reading early; what it answers tells.
    let _ = send.write_all(bytes).await;
    let _ = send.finish();
    let answer = tokio::time::timeout(PATIENCE, recv.read_to_end(1 << 20)).await;
    match answer.expect("an answer or an end, soon") {
        Ok(bytes) => Exchange::Answered(bytes),
        Err(quinn::ReadToEndError::Read(quinn::ReadError::ConnectionLost(_))) => Exchange::Closed,
        Err(_) => Exchange::Reset,
    }
}

/// A connection with a good certificate.
///
/// # Panics
/// If it is refused.
pub async fn connect(server: SocketAddr, dir: &Path) -> quinn::Connection {
    let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a free port");
    let config = client(Some(dir), mneme_proto::version::ALPN);
    let connecting = endpoint
        .connect_with(config, server, "mneme")
        .expect("a valid configuration");
    connecting.await.expect("a good certificate")
}
