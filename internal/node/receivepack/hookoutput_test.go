package receivepack

import (
	"strings"
	"testing"
)

func TestForTerminal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain\ttext":                  "plain\ttext",
		"\x1b[1;31mred\x1b[0m \x1b[m":  "\x1b[1;31mred\x1b[0m \x1b[m",
		"\x1b[38:2::1:2:3mtrue":        "\x1b[38:2::1:2:3mtrue",
		"\x1b[2Jgone \x1b]0;title\a":   " [2Jgone  ]0;title ",
		"\x1b[31":                      " [31",
		"\x1b":                         " ",
		"\x1b[?25l":                    " [?25l",
		"a\rb\bc\x7f\x00":              "a b c  ",
		"grün €":                       "grün €",
		"csi \xc2\x9b31m, raw \x9b31m": "csi   31m, raw  31m",
		"latin \xfc":                   "latin \xfc",
	} {
		if got := string(forTerminal([]byte(text))); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

// A hook's two outputs reach the client in order, with their colours.
func TestHooksSpeakInOrder(t *testing.T) {
	t.Parallel()
	var lines, want []string
	for range 40 {
		lines = append(lines, "echo line", "echo error >&2")
		want = append(want, "line", "error")
	}
	w := newWorld(t, Options{Hooks: hooks(t, map[string]string{"pre-receive": strings.Join(lines, "\n") +
		"\nprintf '\\033[32mgreen\\033[0m\\n'"})})
	out := w.mustPush(w.clone(), "main")
	var got []string
	for line := range strings.Lines(out) {
		switch line = strings.TrimSpace(strings.TrimPrefix(line, "remote:")); line {
		case "line", "error":
			got = append(got, line)
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") || !strings.Contains(out, "\x1b[32mgreen\x1b[0m") {
		t.Errorf("the client sees\n%s", out)
	}
}
