package command

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestResolveCommand asks a node that the command runs itself, one beside it, and one over its port.
func TestResolveCommand(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"alone", "beside", "node"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			root := socketDir(t)
			app := gittest.InitAt(t, filepath.Join(root, "team/app.git"))
			one := app.Commit("one")
			app.Git("update-ref", "refs/heads/main", app.Commit("two", one).String())
			app.Git("tag", "-a", "-m", "t", "v1", one.String())
			to := []string{"--root", root}
			switch where {
			case "beside":
				startServe(t, "--root", root)
			case "node":
				startServe(t, "--root", root, "--listen", "unix:"+root+"/node.sock")
				to = []string{"--node", "unix:" + root + "/node.sock"}
			}
			resolve := func(code int, wantOut, wantErr string, args ...string) string {
				t.Helper()
				got, out, errs := runMain(append(append([]string{"resolve"}, args...), to...)...)
				if got != code || wantOut != "" && out != wantOut || !strings.Contains(errs, wantErr) {
					t.Errorf("resolve %q ended with %d, want %d\n%s%s", args, got, code, out, errs)
				}
				return out
			}
			resolve(0, app.ID("HEAD").String()+"\n", "", "team/app")
			resolve(0, one.String()+"\n"+app.ID("v1").String()+"\n", "", "team/app.git", "main~1", "v1")
			resolve(exitFailed, one.String()+"\n-\n", `no revision "none"`, "team/app", "v1^{}", "none")
			resolve(exitFailed, "", "team/none", "team/none", "main")
			resolve(exitFailed, "", "it stands for a range", "team/app", "main..v1")
			var found githttp.ResolveResult
			if err := json.Unmarshal([]byte(resolve(0, "", "", "team/app", "v1^0", "--json")), &found); err != nil {
				t.Fatal(err)
			}
			if found.ID != one.String() || found.Ref != "refs/tags/v1" || found.Type != "commit" || found.Generation == 0 ||
				found.Incarnation == "" {
				t.Errorf("%+v", found)
			}
			var all githttp.ResolveResponse
			if err := json.Unmarshal([]byte(resolve(exitFailed, "", "", "team/app", "HEAD", "none", "--json")),
				&all); err != nil {
				t.Fatal(err)
			}
			if len(all.Results) != 2 || all.Results[0].Ref != "refs/heads/main" || all.Results[1].Error.Kind != "not_found" {
				t.Errorf("%+v", all)
			}
		})
	}
	if code, _, errs := runMain("resolve"); code != exitUsage || !strings.Contains(errs, "which repository?") {
		t.Errorf("resolve = %d, %s, want %d and the question for a repository", code, errs, exitUsage)
	}
	if code, _, errs := runMain("resolve", "app", "--url", "git.example"); code != exitUsage ||
		!strings.Contains(errs, "--url was removed: ask the public API") {
		t.Errorf("resolve --url = %d, %s, want %d and what to do instead", code, errs, exitUsage)
	}
}
