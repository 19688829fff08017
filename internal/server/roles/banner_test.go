package roles

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

func makeRepository(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/main\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestExampleRepository(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		want  string
		repos []string
	}{
		{"", nil},
		{"app", []string{"app.git"}},
		{"team/app", []string{"team/app.git"}},
		{"work", []string{"work/.git"}},
		{"a/b/c", []string{"a/b/c.git", "z.git"}},        // the first
		{"plain", []string{"it's.git", "plain"}},         // what needs no quoting
		{"app", []string{".packhorse/x.git", "app.git"}}, // not what is ours
		{"", []string{"-x.git", "team/--upload-pack=y.git", "a;reboot.git", "a&b.git", "a|b.git", "(a).git", "a*.git",
			"a#b.git", "a?b.git", "a%20b.git", "~a.git", "!a.git", "a\nb.git", "\u202ea.git", ".hidden.git"}},
	} {
		root := t.TempDir()
		for _, dir := range test.repos {
			makeRepository(t, filepath.Join(root, dir))
		}
		if got := exampleRepository(root, nil); got != test.want {
			t.Errorf("of %q the example is %q, want %q", test.repos, got, test.want)
		}
	}
}

func TestAnnounce(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultConfig()
	cfg.Root = t.TempDir()
	s := statedir.Server{Role: config.RoleServe, Root: cfg.Root, HTTP: "http://127.0.0.1:8080",
		Ops: "http://127.0.0.1:9090"}
	announced := func(format string) string {
		var out bytes.Buffer
		cfg.Log.Format = format
		announce(s, &out, slog.New(slog.NewJSONHandler(&out, nil)), cfg)
		return out.String()
	}
	if got := announced("text"); !strings.Contains(got, "git clone --bare <any repository> "+cfg.Root) {
		t.Errorf("without a repository: banner = %s, want git clone --bare", got)
	}
	makeRepository(t, filepath.Join(cfg.Root, "team/app.git"))
	want := "    try  git clone http://127.0.0.1:8080/team/app\nserving  " + cfg.Root +
		"\n     at  http://127.0.0.1:8080\nmetrics  http://127.0.0.1:9090/metrics\n"
	if got := announced("text"); got != want {
		t.Errorf("for people: %s\nwant: %s", got, want)
	}
	if got := announced("auto"); !strings.Contains(got, `"clone":"git clone http://127.0.0.1:8080/team/app"`) ||
		strings.Count(got, "\n") != 1 {
		t.Errorf("JSON log = %s, want one record with the clone command", got)
	}
}
