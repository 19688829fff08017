package markup

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Texts whose rendering would take minutes or gigabytes are not rendered.
func TestMarkdownIsBounded(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a wide and long table": strings.Repeat("|a", 2000) + "|\n" + strings.Repeat("|-", 2000) + "|\n" +
			strings.Repeat("|\n", 100_000),
		"quotes in quotes":     strings.Repeat(">", 500_000),
		"links without an end": strings.Repeat("[a](\\\n", 80_000),
		"definitions":          strings.Repeat("[a]: b\n", 70_000),
		"strikethrough":        strings.Repeat("~a~~b ", 70_000),
		"emphasis":             strings.Repeat("*a **b ", 70_000),
		"links":                strings.Repeat("[a](b)", 80_000),
		"addresses":            strings.Repeat("www.a.b ", 65_000),
		"tables":               strings.Repeat("a\n:-\n", 80_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			html, ok := Markdown(t.Context(), []byte(text), Links{})
			if took := time.Since(begin); ok || html != "" || took > 10*maxTime {
				t.Errorf("%d bytes, %v, after %v; want none in about a second", len(html), ok, took)
			}
		})
	}
	html, ok := Markdown(t.Context(), []byte("# A\n\n|a|b|\n|-|-|\n|c|\n\n[x]: y\n[x] *z*\n"), Links{})
	if !ok || !strings.Contains(html, "<td>c</td>\n<td></td>") {
		t.Errorf("a small text: %q, %v", html, ok)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if html, ok := Markdown(gone, []byte("a"), Links{}); ok || html != "" {
		t.Errorf("without a client: %q, %v; want none", html, ok)
	}
}
