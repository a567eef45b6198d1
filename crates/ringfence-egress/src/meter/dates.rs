//! Dates at the end of names: of models, and of tools.

/// A name without the date at its end, `YYYYMMDD` or `YYYY-MM-DD` after a separator, which here is `-`; `None` if it has none.
pub(super) fn without_date(name: &str, separator: char) -> Option<&str> {
    let before = |length: usize| name.split_at_checked(name.len().checked_sub(length)?);
    let plain = before(9).filter(|(_, end)| is_date(end, separator, &[0]));
    let separated = || before(11).filter(|(_, end)| is_date(end, separator, &[0, 5, 8]));
    plain.or_else(separated).map(|(bare, _)| bare)
}

/// Whether a text is a date of these years, with separators at these places and nowhere else.
fn is_date(text: &str, separator: char, places: &[usize]) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let number = |range: std::ops::Range<usize>| digits.get(range)?.parse::<u32>().ok();
    text.match_indices(separator).map(|(at, _)| at).eq(places.iter().copied())
        && digits.len() == 8
        && number(0..4).is_some_and(|year| (2020..2100).contains(&year))
        && number(4..6).is_some_and(|month| (1..=12).contains(&month))
        && number(6..8).is_some_and(|day| (1..=31).contains(&day))
}

#[cfg(test)]
mod tests {
    use super::without_date;

    #[test]
    fn only_a_date_at_the_end_is_taken_off() {
        assert_eq!(without_date("model-20250305", '-'), Some("model"));
        assert_eq!(without_date("model-2025-03-05", '-'), Some("model"));
        assert_eq!(without_date("web_search_20250305", '_'), Some("web_search"));
        assert_eq!(without_date("web_search_preview_2025_03_11", '_'), Some("web_search_preview"));
        for name in
            ["model-20251305", "model-2025_03_05", "model-1", "20250305", "model_20250305", "-2025-0305x"]
        {
            assert_eq!(without_date(name, '-'), None, "{name}");
        }
        for name in ["web_search", "web_search_00000000", "tool_1234_5678"] {
            assert_eq!(without_date(name, '_'), None, "{name}");
        }
    }
}
