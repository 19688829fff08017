package markup

import (
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			html, ok := Markdown([]byte(text), Links{})
			if took := time.Since(begin); ok || html != "" || took > 10*maxTime {
				t.Errorf("%d bytes, %v, after %v; want none in about a second", len(html), ok, took)
			}
		})
	}
	html, ok := Markdown([]byte("# A\n\n|a|b|\n|-|-|\n|c|\n\n[x]: y\n[x] *z*\n"), Links{})
	if !ok || !strings.Contains(html, "<td>c</td>\n<td></td>") {
		t.Errorf("a small text: %q, %v", html, ok)
	}
}
