//! Tests of the rules about source files, on small files written here.

use super::*;

fn offences_in(text: &str) -> Vec<String> {
    of_file(Path::new("src/a.rs"), text)
}

#[test]
fn a_file_without_a_head_is_named() {
    let found = offences_in("use std::fmt;\n");
    assert_eq!(
        found,
        ["src/a.rs:1: opens without `//!`: what is this file for?"]
    );
}

#[test]
fn a_short_file_with_a_head_is_fine() {
    assert!(offences_in("//! For tests.\n\nfn one() {}\n").is_empty());
}

#[test]
fn work_left_for_later_is_named_with_its_line() {
    let marker = ["TO", "DO"].concat();
    let found = offences_in(&format!("//! For tests.\n// {marker}: think\n"));
    assert_eq!(
        found,
        [format!("src/a.rs:2: `{marker}`: nothing is left for later")]
    );
}

#[test]
fn a_marker_inside_a_longer_word_is_no_marker() {
    let word = ["MAS", "TO", "DON"].concat();
    assert!(offences_in(&format!("//! For tests.\n// {word}\n")).is_empty());
}

#[test]
fn paths_of_one_machine_are_named() {
    let path = ["/ho", "me/", "someone"].concat();
    assert_eq!(
        offences_in(&format!("//! For tests.\n// {path}\n")).len(),
        1
    );
}

#[test]
fn comments_and_blank_lines_do_not_make_a_function_long() {
    let filler = "    // why\n\n".repeat(LONGEST_FUNCTION);
    assert!(
        offences_in(&format!(
            "//! For tests.\nfn f() {{\n{filler}    g();\n}}\n"
        ))
        .is_empty()
    );
}

#[test]
fn a_function_over_the_limit_is_named() {
    let body = "        g();\n".repeat(LONGEST_FUNCTION + 1);
    let found = offences_in(&format!(
        "//! For tests.\nimpl A {{\n    pub fn f(\n        a: u8,\n    ) {{\n{body}    }}\n}}\n"
    ));
    assert_eq!(found, ["src/a.rs:3: `f` has 61 lines; 60 is the most"]);
}

#[test]
fn a_declaration_without_a_body_has_no_length() {
    let body = "    g();\n".repeat(LONGEST_FUNCTION);
    let text = format!("//! For tests.\ntrait T {{\n    fn f(&self);\n}}\nfn h() {{\n{body}}}\n");
    assert!(offences_in(&text).is_empty());
}

#[test]
fn a_file_over_the_limit_is_named() {
    let found = offences_in(&format!("//! For tests.\n{}", "//\n".repeat(LONGEST_FILE)));
    assert_eq!(found, ["src/a.rs: 501 lines; 500 is the most"]);
}
