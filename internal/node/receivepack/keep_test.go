package receivepack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// keeping is a git that leaves a .keep file with each pushed pack, as some versions after 2.55 do. The file names its
// creator.
func keeping(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	return script(t, filepath.Join(t.TempDir(), "git"), `
for last; do :; done
case " $* " in
*" receive-pack "*)
	before=$(ls "$last/objects/pack")
	`+program+` "$@" || exit
	for pack in "$last"/objects/pack/*.pack; do
		case $before in *"${pack##*/}"*) ;; *) printf 'receive-pack %s on %s\n' $$ "$(hostname)" >"${pack%.pack}.keep" ;; esac
	done
	exit 0 ;;
esac
exec `+program+` "$@"`)
}

// The .keep file that git leaves after a push is removed, and no other one.
func TestKeepFileOfAPush(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("hostname"); err != nil {
		t.Skip("SKIPPED: no hostname here")
	}
	w := worldBy(t, keeping(t), Options{}, gittest.Init(t))
	c := w.clone()
	w.mustPush(c, "main")
	list := func() []string {
		names, err := filepath.Glob(filepath.Join(w.Dir, "objects/pack/*.keep"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	if left := list(); len(left) > 0 || recovered(w, "keep") != 1 {
		t.Errorf("left are %q", left)
	}
	packs, _ := filepath.Glob(filepath.Join(w.Dir, "objects/pack/*.pack"))
	administrators := strings.TrimSuffix(packs[0], ".pack") + ".keep"
	others := map[string]string{
		administrators: "", filepath.Join(w.Dir, "objects/pack/pack-a.keep"): "kept by hand",
		filepath.Join(w.Dir, "objects/pack/pack-b.keep"): "receive-pack 1 on elsewhere",
	}
	for path, text := range others {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	old := filepath.Join(w.Dir, "objects/pack/pack-c.keep") // of before this push
	host, _ := os.Hostname()
	if err := os.WriteFile(old, []byte("receive-pack 4194304 on "+host), 0o644); err != nil {
		t.Fatal(err)
	}
	hour := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, hour, hour); err != nil {
		t.Fatal(err)
	}
	c.Git("update-ref", "refs/heads/main", c.Commit("second", c.ID("main")).String())
	w.mustPush(c, "main")
	if left := list(); len(left) != len(others)+1 {
		t.Errorf("left are %q", left)
	}
}
