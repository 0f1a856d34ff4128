//! `mneme cert`: a cluster's certificates.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use mneme_net::cert::{self, Role};
use serde::Serialize;

use super::Session;

/// Make a cluster's certificates.
#[derive(Debug, Args)]
pub struct CertArgs {
    #[command(subcommand)]
    command: CertCommand,
}

#[derive(Debug, Subcommand)]
enum CertCommand {
    /// Make a certificate authority. Its key signs certificates: keep DIR safe.
    Init {
        /// The authority's directory.
        dir: PathBuf,
    },
    Issue(IssueArgs),
}

/// Issue a certificate: ca.pem, cert.pem and key.pem.
#[derive(Debug, Args)]
struct IssueArgs {
    /// Whom it names: the name of a member, a node or a client.
    name: String,
    /// Where its files go; what is there is replaced.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The authority's directory, as `cert init` made it [default: the directory above
    /// --out].
    #[arg(long, value_name = "DIR")]
    authority: Option<PathBuf>,
    /// What the principal may be [default: catalogue for a name that begins with 'meta' or
    /// 'catalogue', node with 'node' or 'server', admin with 'admin', else client].
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Option<RoleWord>,
}

impl IssueArgs {
    fn role(&self) -> Role {
        let begins = |words: [&str; 2]| words.iter().any(|word| self.name.starts_with(word));
        match self.role {
            Some(role) => role.into(),
            None if begins(["meta", "catalogue"]) => Role::Catalogue,
            None if begins(["node", "server"]) => Role::Node,
            None if self.name.starts_with("admin") => Role::Admin,
            None => Role::Client,
        }
    }

    fn authority(&self) -> &Path {
        match (&self.authority, self.out.parent()) {
            (Some(dir), _) => dir,
            (None, Some(dir)) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RoleWord {
    /// A member of the catalogue: `mneme meta`.
    Catalogue,
    /// A storage node: `mneme server`.
    Node,
    /// Anything that only asks: what it made itself and what it is granted (`mneme grant`).
    Client,
    /// A client that may everything, grants included.
    Admin,
}

impl From<RoleWord> for Role {
    fn from(word: RoleWord) -> Self {
        match word {
            RoleWord::Catalogue => Self::Catalogue,
            RoleWord::Node => Self::Node,
            RoleWord::Client => Self::Client,
            RoleWord::Admin => Self::Admin,
        }
    }
}

#[derive(Serialize)]
struct Made<'a> {
    dir: &'a PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(args: &CertArgs, session: &Session) -> anyhow::Result<()> {
    match &args.command {
        CertCommand::Init { dir } => {
            cert::init_authority(dir)?;
            let made = Made {
                dir,
                principal: None,
            };
            let text = || format!("authority made in {}", dir.display());
            session.output.print(&made, text)?;
        }
        CertCommand::Issue(args) => {
            let role = args.role();
            cert::issue(args.authority(), role, &args.name, &args.out)?;
            let principal = format!("{role} '{}'", args.name);
            let text = format!("certificate of {principal} in {}", args.out.display());
            let made = Made {
                dir: &args.out,
                principal: Some(principal),
            };
            session.output.print(&made, || text)?;
        }
    }
    Ok(())
}
