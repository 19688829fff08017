package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The backup of a node of a store has its state and configuration, and names the bucket of the repositories.
func TestBackupOfStoreNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"serve.toml": "root = '" + dir + "/root'\nstate = '" + dir + "/state'\n[store]\nurl = 's3://git-prod/p'\n" +
			"[lfs]\nkey_file = '" + dir + "/key'\n[ssh]\nauthorized_keys = '" + dir + "/missing'\n",
		"root/copy.git/HEAD": "ref: refs/heads/main\n", "state/tokens": "hash", "state/epoch": "1", "key": "secret",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(dir, "backup")
	code, out, errs := runMain("backup", to, "--config", dir+"/serve.toml")
	if code != exitOK || !strings.Contains(out, "backed up 0 repositories") ||
		!strings.Contains(out, "left out: "+dir+"/missing: no such file") ||
		!strings.Contains(errs, "the repositories are in s3://git-prod/p, and not in this backup") {
		t.Errorf("backup: %d, %s%s", code, out, errs)
	}
	for name, want := range map[string]bool{"state/tokens": true, "state/epoch": false, "files" + dir + "/key": true,
		"files" + dir + "/serve.toml": true, "root": false} {
		if _, err := os.Stat(filepath.Join(to, name)); err == nil != want {
			t.Errorf("%s: %v, want it: %v", name, err, want)
		}
	}
	for _, args := range [][]string{{"backup", to}, {"backup"}, {"restore", to}, {"backup", to, "--root", dir + "/none"}} {
		if code, _, errs := runMain(args...); code != exitUsage {
			t.Errorf("%q: %d, %s", args, code, errs)
		}
	}
}
