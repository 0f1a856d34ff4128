//! Files that are not what they claim: each refused by name, with nothing stored (B086).

use mneme_tests::files::{f32_bytes, write_npy_raw, write_safetensors_raw};
use mneme_tests::{Dev, Mneme};
use serde_json::Value;

/// Imports `file` as a new table, which must be refused and leave nothing.
fn refused(mneme: &Mneme, what: &str, file: &str) {
    let output = mneme.run(&["import", "bad", file, "--create", "--seal"]);
    assert_eq!(output.code, 1, "{what}: {output:#?}");
    assert_eq!(
        (output.stdout.as_str(), output.stderr.trim().lines().count()),
        ("", 1),
        "{what}"
    );
    assert_eq!(
        mneme.json(&["table", "list"])["tables"],
        Value::Array(vec![]),
        "{what}"
    );
}

#[test]
fn broken_safetensors_are_refused() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let path = dev.data().join("bad.safetensors");
    let file = path.to_str().expect("UTF-8");
    let entry = |name: &str, dtype: &str, shape: &str, from: usize, to: usize| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let good = entry("a", "F32", "[2,2]", 0, 16);
    let data = f32_bytes(&[1.0, 2.0, 3.0, 4.0]);
    let twice = [&data[..], &data[..]].concat();
    let cases: [(&str, String, &[u8]); 9] = [
        (
            "overlap",
            format!("{{{good},{}}}", entry("b", "F32", "[2,2]", 8, 24)),
            &twice[..24],
        ),
        (
            "hole",
            format!("{{{good},{}}}", entry("b", "F32", "[2,1]", 24, 32)),
            &twice,
        ),
        (
            "duplicate names",
            format!("{{{good},{}}}", entry("a", "F32", "[2,2]", 16, 32)),
            &twice,
        ),
        (
            "unknown dtype",
            format!("{{{}}}", entry("a", "F13", "[2,2]", 0, 16)),
            &data,
        ),
        (
            "size",
            format!("{{{}}}", entry("a", "F32", "[2,3]", 0, 16)),
            &data,
        ),
        ("one byte short", format!("{{{good}}}"), &data[..15]),
        ("one byte long", format!("{{{good}}}"), &twice[..17]),
        (
            "overflow",
            format!(
                "{{{}}}",
                entry("a", "F32", "[1099511627776,1099511627776]", 0, 16)
            ),
            &data,
        ),
        ("no JSON", "{nonsense".into(), &data),
    ];
    for (what, header, data) in cases {
        write_safetensors_raw(&path, &header, data);
        refused(&mneme, what, file);
    }
    std::fs::write(&path, u64::MAX.to_le_bytes()).expect("writable");
    refused(&mneme, "a huge header", file);
    std::fs::write(&path, [1, 2, 3]).expect("writable");
    refused(&mneme, "three bytes", file);
    refused(&mneme, "no file", "/nowhere/x.safetensors");
}

#[test]
fn broken_npy_files_are_refused() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let path = dev.data().join("bad.npy");
    let file = path.to_str().expect("UTF-8");
    let header = |descr: &str, order: &str, shape: &str| {
        format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}")
    };
    let data = f32_bytes(&[0.5; 12]);
    let f4 = "'<f4'";
    let cases: [(&str, String, &[u8]); 11] = [
        ("0-d", header(f4, "False", "()"), &data[..4]),
        ("1-d", header(f4, "False", "(12,)"), &data),
        ("3-d", header(f4, "False", "(2, 2, 3)"), &data),
        ("objects", header("'|O'", "False", "(3, 4)"), &data),
        (
            "structured",
            header("[('a', '<f4')]", "False", "(3, 4)"),
            &data,
        ),
        ("strings", header("'<U4'", "False", "(3, 4)"), &data),
        ("one byte short", header(f4, "False", "(3, 4)"), &data[..47]),
        ("one byte long", header(f4, "False", "(2, 4)"), &data[..33]),
        (
            "overflow",
            header(f4, "False", "(1099511627776, 1099511627776)"),
            &data,
        ),
        ("no dictionary", "nonsense".into(), &data),
        ("negative", header(f4, "False", "(-3, 4)"), &data),
    ];
    for (what, dictionary, data) in cases {
        write_npy_raw(&path, &dictionary, data);
        refused(&mneme, what, file);
    }
    std::fs::write(&path, b"\x93NUMPY\x09\x00aaaa").expect("writable");
    refused(&mneme, "a newer version", file);
}

/// Fortran order, big-endian, header versions 2 and 3, any key order: the same rows.
#[test]
fn npy_variants_hold_the_same_rows() {
    let dev = Dev::start();
    let mneme = dev.mneme();
    let path = dev.data().join("v.npy");
    let file = path.to_str().expect("UTF-8");
    let c_order: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let fortran: Vec<f32> = (0..4)
        .flat_map(|c| (0..3).map(move |r| (r * 4 + c) as f32))
        .collect();
    let big: Vec<u8> = c_order.iter().flat_map(|v| v.to_be_bytes()).collect();
    let plain = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }";
    let variants: [(&str, &str, Vec<u8>); 4] = [
        ("c", plain, f32_bytes(&c_order)),
        (
            "fortran",
            "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }",
            f32_bytes(&fortran),
        ),
        (
            "big",
            "{'descr': '>f4', 'fortran_order': False, 'shape': (3, 4), }",
            big,
        ),
        (
            "order",
            "{'shape':(3,4),  'fortran_order':False,'descr':'<f4'}",
            f32_bytes(&c_order),
        ),
    ];
    let check = |what: &str| {
        mneme.ok(&["import", "t", file, "--create", "--seal"]);
        let row = &mneme.json(&["pull", "t", "--keys", "1"])["rows"][0]["values"];
        assert_eq!(*row, serde_json::json!([4.0, 5.0, 6.0, 7.0]), "{what}");
        mneme.ok(&["table", "drop", "t"]);
    };
    for (what, dictionary, data) in variants {
        write_npy_raw(&path, dictionary, &data);
        check(what);
    }
    for version in [2, 3] {
        let text = format!("{plain}\n");
        let start = [
            &b"\x93NUMPY"[..],
            &[version, 0],
            &(text.len() as u32).to_le_bytes(),
        ]
        .concat();
        std::fs::write(
            &path,
            [&start, text.as_bytes(), &f32_bytes(&c_order)].concat(),
        )
        .expect("writable");
        check("a later header");
    }
}
