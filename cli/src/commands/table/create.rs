//! `mneme table create`.

use anyhow::bail;
use clap::{Args, ValueEnum};
use mneme_proto::schema::{
    Dtype, Initializer, Optimizer, Plane, Rounding, RowSchema, TableKind, TableSpec,
};

use super::describe::Description;
use super::plan::Plan;
use crate::commands::{Session, parse_assignment, parse_key};

/// Make a table.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Its name: letters, digits, '_', '-' and '.'.
    name: String,
    /// Any u64 keys, or row ids 0 to --rows.
    #[arg(long, value_enum)]
    kind: Kind,
    /// Rows of a dense table; with --dry-run also the rows that a hashed one shall hold.
    #[arg(long, value_name = "N")]
    rows: Option<u64>,
    /// Element type of a row: f32, f16, bf16, f8e4m3, f8e5m2, i8 or u8.
    #[arg(long, value_name = "DTYPE", requires = "dim")]
    dtype: Option<Dtype>,
    /// Elements of a row.
    #[arg(long, value_name = "D", requires = "dtype")]
    dim: Option<u32>,
    /// A column group of its own, instead of --dtype and --dim; several are concatenated.
    #[arg(long, value_name = "NAME:DTYPE:WIDTH", value_parser = parse_plane,
          conflicts_with_all = ["dtype", "dim"])]
    plane: Vec<Plane>,
    /// Shards, a power of two [default: 16 for every node, rounded up].
    #[arg(long, value_name = "S")]
    shards: Option<u32>,
    /// What gradients do: sgd, adagrad, rowwise_adagrad, adam, adamw or ftrl. Without one,
    /// gradients are refused.
    #[arg(long, value_name = "NAME")]
    optimizer: Option<String>,
    /// Options of the optimizer. sgd: lr .01, momentum 0, weight_decay 0; adagrad: lr .01,
    /// eps 1e-10, acc0 0; rowwise_adagrad: lr .01, eps 1e-8, acc0 0, weight_decay 0,
    /// decay l2|decoupled; adam, adamw: lr .01, beta1 .9, beta2 .999, eps 1e-8, weight_decay 0,
    /// step row|caller, eps_form standard|torch_sparse; ftrl: lr .01, l1 0, l2 0, beta 1, n0 0.
    #[arg(long, value_name = "K=V", num_args = 1.., value_parser = parse_assignment,
          requires = "optimizer")]
    opt: Vec<(String, String)>,
    /// How results are rounded to f16, bf16 or fp8 rows.
    #[arg(long, value_enum, value_name = "HOW", default_value = "nearest")]
    rounding: RoundingWord,
    /// Keep a copy of each row in f32 beside its state, so that small updates are not lost.
    #[arg(long, value_enum, value_name = "DTYPE")]
    master: Option<Master>,
    /// How new rows are made: zeros, constant:V, uniform:A:B or normal:MEAN:STD.
    #[arg(long, value_name = "HOW", default_value = "zeros")]
    init: Initializer,
    /// Seed of the initializer.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Every element of the row that answers a hashed key without one [default: 0].
    #[arg(long, value_name = "V", allow_negative_numbers = true)]
    default: Option<f32>,
    /// A key that always reads as zeros and ignores pushes.
    #[arg(long, value_name = "K", value_parser = parse_key, allow_negative_numbers = true)]
    padding_key: Option<u64>,
    /// Make nothing; print what the table would take.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Hashed,
    Dense,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RoundingWord {
    /// To nearest, ties to even.
    Nearest,
    /// Up or down, the nearer the likelier: right on average.
    Stochastic,
}

impl From<RoundingWord> for Rounding {
    fn from(word: RoundingWord) -> Self {
        match word {
            RoundingWord::Nearest => Self::Nearest,
            RoundingWord::Stochastic => Self::Stochastic,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Master {
    F32,
}

/// `NAME:DTYPE:WIDTH`.
fn parse_plane(text: &str) -> Result<Plane, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let [name, dtype, width] = parts[..] else {
        return Err(format!("'{text}' is not NAME:DTYPE:WIDTH"));
    };
    Ok(Plane {
        name: name.into(),
        dtype: dtype.parse().map_err(|e| format!("{e}"))?,
        width: width
            .parse()
            .map_err(|_| format!("width '{width}' is no number"))?,
    })
}

impl CreateArgs {
    /// The table that these arguments describe, in the client's tenant.
    fn spec(&self, tenant: &str) -> anyhow::Result<TableSpec> {
        let kind = match (self.kind, self.rows) {
            // An import of no rows makes such a table; by hand it is a slip.
            (Kind::Dense, Some(0)) => bail!("rows: it must be at least 1"),
            (Kind::Dense, Some(rows)) => TableKind::Dense { rows },
            (Kind::Dense, None) => bail!("--rows is missing: a dense table has a fixed number"),
            (Kind::Hashed, Some(_)) if !self.dry_run => {
                bail!("--rows is for dense tables: a hashed one grows with its keys")
            }
            (Kind::Hashed, _) => TableKind::Hashed,
        };
        let schema = match (self.dtype, self.dim) {
            (Some(dtype), Some(dim)) => RowSchema::single(dtype, dim),
            _ if !self.plane.is_empty() => RowSchema {
                planes: self.plane.clone(),
            },
            _ => bail!("what is a row? give --dtype and --dim, or --plane NAME:DTYPE:WIDTH"),
        };
        let optimizer = match &self.optimizer {
            Some(word) => Optimizer::from_options(word, &self.opt)?,
            None => Optimizer::None,
        };
        let spec = TableSpec {
            name: self.name.clone(),
            tenant: tenant.to_owned(),
            kind,
            schema,
            shards: self.shards.unwrap_or(0),
            optimizer,
            init: self.init,
            seed: self.seed,
            default_value: self.default.unwrap_or(0.0),
            padding_key: self.padding_key,
            rounding: self.rounding.into(),
            master: self.master.is_some(),
        };
        if self.shards == Some(0) {
            bail!("shards: 0 is not a power of two");
        }
        spec.validate()?;
        Ok(spec)
    }
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(args: &CreateArgs, session: &Session) -> anyhow::Result<()> {
    let tenant = session.client_config()?.tenant;
    let spec = args.spec(&tenant)?;
    let client = session.client()?;
    if args.dry_run {
        let plan = Plan::of(spec, args.rows, &client.status()?);
        client.close();
        session.output.print(&plan, || plan.text())?;
        return Ok(());
    }
    let table = client.create_table(spec)?;
    let made = Description::of(&client, &table)?;
    client.close();
    session.output.print(&made, || made.text())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        args: CreateArgs,
    }

    fn spec(words: &str) -> Result<TableSpec, String> {
        let words = ["mneme"].into_iter().chain(words.split_whitespace());
        let parsed = Wrapper::try_parse_from(words).map_err(|e| crate::failure::usage_line(&e))?;
        parsed.args.spec("default").map_err(|e| e.to_string())
    }

    #[test]
    fn arguments_make_a_spec() {
        let made = spec("t --kind hashed --dtype f32 --dim 8").expect("legal");
        assert_eq!(
            (made.kind, made.shards, made.seed),
            (TableKind::Hashed, 0, 1)
        );
        assert_eq!(
            (made.optimizer, made.init),
            (Optimizer::None, Initializer::Zeros)
        );
        let made =
            spec("t --kind dense --rows 10 --plane codes:u8:256 --plane scale:f32:2 --shards 4")
                .expect("legal");
        assert_eq!((made.row_bytes(), made.shards), (264, 4));
        let made = spec(
            "t --kind hashed --dtype f32 --dim 8 --optimizer adagrad --opt lr=0.5 eps=1e-8 \
             --opt acc0=0.1 --init uniform:-0.05:0.05 --seed 7 --default -1 --padding-key 0",
        )
        .expect("legal");
        let want = Optimizer::Adagrad {
            lr: 0.5,
            eps: 1e-8,
            acc0: 0.1,
        };
        assert_eq!(made.optimizer, want);
        assert_eq!(
            (made.seed, made.default_value, made.padding_key),
            (7, -1.0, Some(0))
        );
    }

    /// Every refusal names the option and what would be right.
    #[test]
    fn wrong_arguments_are_named() {
        let hashed = "t --kind hashed --dtype f32 --dim 8";
        for (words, says) in [
            ("t --kind dense --dtype f32 --dim 8", "--rows is missing"),
            (&format!("{hashed} --rows 5"), "--rows is for dense tables"),
            ("t --kind hashed", "what is a row?"),
            ("t --kind hashed --dim 8", "--dtype"),
            (
                "t --kind hashed --dtype f64 --dim 8",
                "'f64' is unknown; known: f32, f16, bf16",
            ),
            ("t --kind hashed --dtype f32 --dim 0", "width 0"),
            ("t --kind hashed --dtype f32 --dim 99999", "over the limit"),
            (
                "t --kind sparse --dtype f32 --dim 8",
                "invalid value 'sparse'",
            ),
            (
                "t --kind dense --rows 0 --dtype f32 --dim 8",
                "rows: it must be at least 1",
            ),
            ("a/b --kind hashed --dtype f32 --dim 8", "is not a name"),
            (&format!("{hashed} --shards 3"), "3 is not a power of two"),
            (&format!("{hashed} --shards 0"), "0 is not a power of two"),
            (
                &format!("{hashed} --optimizer adamax"),
                "known: none, sgd, adagrad, rowwise_adagrad, adam, adamw, ftrl",
            ),
            (
                &format!("{hashed} --optimizer sgd --opt rho=1"),
                "rho: sgd has no such option",
            ),
            (
                &format!("{hashed} --optimizer sgd --opt lr=NaN"),
                "lr: NaN is refused",
            ),
            (&format!("{hashed} --opt lr=1"), "--optimizer"),
            (
                &format!("{hashed} --optimizer sgd --opt lr"),
                "is not NAME=VALUE",
            ),
            (&format!("{hashed} --init ones"), "'ones': it is none of"),
            (
                &format!("{hashed} --init uniform:1:-1"),
                "the lower bound 1 is not below the upper bound -1",
            ),
            (
                &format!("{hashed} --init uniform:0:NaN"),
                "the upper bound is NaN: it must be finite",
            ),
            (
                &format!("{hashed} --optimizer sgd --opt lr=1 --opt lr=2"),
                "lr: it is given twice",
            ),
            (
                "t --kind dense --rows 4 --dtype f32 --dim 1 --padding-key 4",
                "padding-key: 4 is no row: the table has 4 of them, from 0 on",
            ),
            (
                "t --kind hashed --dtype f16 --dim 1 --init constant:70000",
                "init: constant:70000 does not fit f16, which holds magnitudes up to 65504.0",
            ),
            (
                "t --kind hashed --dtype i8 --dim 1 --default 128",
                "default: 128 does not fit i8, which holds whole numbers from -128 to 127",
            ),
            (
                "t --kind hashed --plane a:bf16:2 --plane b:i8:1 --optimizer adam",
                "adam needs float planes, this table has a:bf16:2 b:i8:1",
            ),
            (
                &format!("{hashed} --rounding stochastic"),
                "rounding: it is for f16, bf16, f8e4m3 and f8e5m2 rows",
            ),
            (&format!("{hashed} --master f32"), "master: it is for f16"),
            (&format!("{hashed} --master f16"), "--master"),
            (&format!("{hashed} --padding-key -1"), "'-1' is not a key"),
            (&format!("{hashed} --plane a:f32:1"), "cannot be used with"),
            ("t --kind hashed --plane a:f32", "is not NAME:DTYPE:WIDTH"),
            (
                "t --kind hashed --plane a:f32:1 --plane a:u8:1",
                "'a' appears twice",
            ),
            (
                "t --kind hashed --dtype u8 --dim 8 --optimizer sgd",
                "sgd needs float planes",
            ),
            (
                "t --kind dense --rows 1 --dtype f32 --dim 1 --default 1",
                "use init",
            ),
        ] {
            let error = spec(words).expect_err(words);
            assert!(error.contains(says), "{words}: {error}");
        }
    }
}
