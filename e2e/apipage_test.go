package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// A command on a page, and the answer that the page shows below it.
var pageCommand = regexp.MustCompile("(?s)```sh\n((?:NODE|curl).*?)```\n(?:```json\n(.*?)```)?")

// TestAPIPage runs the commands of docs/reference/api.md in one shell and compares their output with the page. Each
// field on the page must be in the output with a value of the same type. Values that the page shows as "..." or that
// end so may be any.
func TestAPIPage(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("*** there is no curl here: the commands of docs/reference/api.md are NOT tested ***")
	}
	page, err := os.ReadFile("../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	n := startStorage(t, map[string]*gittest.Repo{"demo.git": linear(t)})
	found := pageCommand.FindAllStringSubmatch(string(page), -1)
	if len(found) < 4 {
		t.Fatalf("only %d commands found", len(found))
	}
	for _, m := range found {
		command, shown := m[1], m[2]
		cmd := exec.Command("sh", "-euc", strings.Replace(command, "NODE=http://127.0.0.1:9100\n", "", 1))
		cmd.Env = append(os.Environ(), "NODE=http://"+n.address, "SECRET="+n.secret)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s\n%v\n%s", command, err, out)
			continue
		}
		var want, got any
		if err := json.Unmarshal([]byte(shown), &want); err != nil {
			t.Errorf("the page's answer to %s is no JSON: %v", command, err)
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Errorf("the answer to %s is no JSON: %v\n%s", command, err, out)
		}
		for _, difference := range missing("", want, got) {
			t.Errorf("%s\nthe page shows %s\n%s", command, difference, out)
		}
	}
}

// missing lists the fields of want that got does not have.
func missing(at string, want, got any) (list []string) {
	switch want := want.(type) {
	case map[string]any:
		fields, _ := got.(map[string]any)
		for name, value := range want {
			list = append(list, missing(at+"."+name, value, fields[name])...)
		}
	case []any:
		elements, _ := got.([]any)
		for i, value := range want {
			if i >= len(elements) {
				return append(list, fmt.Sprintf("%s[%d]", at, i))
			}
			list = append(list, missing(fmt.Sprintf("%s[%d]", at, i), value, elements[i])...)
		}
	case string:
		begin, open := strings.CutSuffix(want, "...")
		if text, ok := got.(string); !ok || text == "" || !open && text != want || !strings.HasPrefix(text, begin) {
			list = append(list, fmt.Sprintf("%s = %q", at, want))
		}
	default:
		if want != got {
			list = append(list, fmt.Sprintf("%s = %v", at, want))
		}
	}
	slices.Sort(list)
	return list
}
