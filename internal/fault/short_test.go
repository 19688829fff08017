package fault

import (
	"strings"
	"testing"
)

func TestLongNamesKeepTheirEnds(t *testing.T) {
	t.Parallel()
	long := "refs/heads/" + strings.Repeat("x", 500) + "/the-end"
	for _, name := range []string{"", "team/app", strings.Repeat("x", maxName)} {
		if got := Short(name); got != name {
			t.Errorf("Short(%q) = %q, want it unchanged", name, got)
		}
	}
	if got := Short([]byte(long)); len(got) != maxName || !strings.HasPrefix(got, "refs/heads/x") ||
		!strings.HasSuffix(got, "x/the-end") || !strings.Contains(got, "x...x") {
		t.Errorf("Short = %q (%d bytes), want both ends in %d bytes", got, len(got), maxName)
	}
	if got := Cut("team/with-a-long-name", 12); got != "tea...g-name" {
		t.Errorf("Cut = %q, want tea...g-name", got)
	}
}
