package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documentHosts are the hosts in the documentation. In the world of a page they are this machine.
const documentHosts = "github.com git.example git.example.com git.example.org gitlab.example.com old.example " +
	"old.example.com ci.example new.example"

// shellBlock has commands of a page, or of a hidden set-up.
type shellBlock struct {
	line     int
	commands string
	shown    string // the output that the page has below the commands
}

// document is a page.
type document struct {
	name     string
	blocks   []shellBlock // those to run
	tests    []string     // that run other blocks
	problems []string
}

// documentPart is a mark or a block. CONTRIBUTING.md describes the marks.
var documentPart = regexp.MustCompile("(?ms)" +
	"^ *<!-- (page run by|page not run|run by|not run|set-up|replace|file|output)\\b:?(.*?)\\s*-->\n|" +
	"^( *)```(\\S*)\n(.*?)^ *```\n")

// readDocument finds the commands of a page.
func readDocument(name, text string) document {
	d := document{name: name}
	line, end := 0, 0
	problem := func(text string) { d.problems = append(d.problems, fmt.Sprintf("%s:%d: %s", name, line, text)) }
	add := func(commands string) { d.blocks = append(d.blocks, shellBlock{line, commands, ""}) }
	var page, mark, file string // page and mark are the marks that hold
	var words [][2]string       // to replace in the next block
	for _, at := range documentPart.FindAllStringSubmatchIndex(text, -1) {
		group := func(n int) string { return text[max(at[2*n], 0):max(at[2*n+1], 0)] }
		line = 1 + strings.Count(text[:at[0]], "\n")
		if (mark != "" || words != nil) && strings.TrimSpace(text[end:at[0]]) != "" {
			problem("the mark above is not before a block")
			mark, words = "", nil
		}
		end = at[1]
		if at[2] >= 0 {
			kind, argument := group(1), strings.TrimSpace(group(2))
			if kind != "output" && argument == "" {
				problem(kind + " needs an argument")
			}
			switch kind {
			case "set-up":
				add(argument)
			case "replace":
				word, by, _ := strings.Cut(argument, "->")
				words = append(words, [2]string{strings.TrimSpace(word), strings.TrimSpace(by)})
			case "page run by", "page not run":
				page = kind
			default:
				mark, file = kind, argument
			}
			if strings.HasSuffix(kind, "run by") {
				d.tests = append(d.tests, argument)
			}
			continue
		}
		language, block := group(4), regexp.MustCompile("(?m)^"+group(3)).ReplaceAllString(group(5), "")
		for _, w := range words {
			if !strings.Contains(block, w[0]) {
				problem("the block does not have " + w[0])
			}
			block = strings.ReplaceAll(block, w[0], w[1])
		}
		switch {
		case language == "":
			problem("a block without a language")
		case language == "bash" || language == "shell" || language == "console":
			problem("the language of commands is sh")
		case mark == "file":
			add(fmt.Sprintf("mkdir -p \"$(dirname %s)\"\ncat >%[1]s <<'END-OF-FILE'\n%sEND-OF-FILE", file, block))
		case mark == "output" && len(d.blocks) > 0:
			d.blocks[len(d.blocks)-1].shown = block
		case language == "sh" && mark == "" && page == "":
			add(block)
		}
		mark, words = "", nil
	}
	return d
}

// TestDocuments runs the commands of each page in one shell, in a world of its own, and compares their output with the
// page.
func TestDocuments(t *testing.T) {
	t.Parallel()
	why := cannotRunDocuments(t)
	for _, d := range documents(t) {
		for _, problem := range d.problems {
			t.Error(problem)
		}
		for _, test := range d.tests {
			if !testOfPage(t, test, filepath.Base(d.name)) {
				t.Errorf("%s: there is no %s that names the page", d.name, test)
			}
		}
		if len(d.blocks) == 0 || why != "" {
			continue
		}
		t.Run(strings.TrimSuffix(d.name, ".md"), func(t *testing.T) {
			t.Parallel()
			d.run(t)
		})
	}
	if why != "" {
		t.Skipf("*** THE COMMANDS OF THE DOCUMENTATION ARE NOT RUN: %s ***", why)
	}
}

// documents reads all pages.
func documents(t *testing.T) (all []document) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "sdk/*/*.md", "bench/*.md",
		"bench/*/*.md"} {
		files, err := filepath.Glob("../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, readDocument(strings.TrimPrefix(file, "../"), string(text)))
		}
	}
	return all
}

// testOfPage reports whether there is a test of this name in a file that names the page.
func testOfPage(t *testing.T, test, page string) bool {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "\nfunc "+test+"(t *testing.T) {\n") &&
			strings.Contains(string(text), page)
	})
}

// cannotRunDocuments returns why this machine cannot make worlds, or nothing if it can.
func cannotRunDocuments(t *testing.T) string {
	if why := canRunContainers(t); why != "" {
		return why
	}
	for _, program := range []string{"bash", "curl", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			return "there is no " + program
		}
	}
	return ""
}

// documentPrograms are the programs that some commands need.
var documentPrograms = map[string]string{
	"| jq ": "jq", "git lfs ": "git-lfs", "ssh-keygen ": "ssh-keygen", "nginx -c ": "nginx", "python3 ": "python3",
	"s3 git": "../bin/store/versitygw", "/versitygw ": "../bin/store/versitygw",
}

func (d document) run(t *testing.T) {
	commands, err := os.ReadFile("testdata/documents/commands.sh")
	if err != nil {
		t.Fatal(err)
	}
	world, err := os.ReadFile("testdata/documents/world.sh")
	if err != nil {
		t.Fatal(err)
	}
	script := string(commands)
	for _, b := range d.blocks {
		for command, program := range documentPrograms {
			if _, err := exec.LookPath(program); err != nil && strings.Contains(b.commands, command) {
				t.Skipf("*** THE COMMANDS OF %s ARE NOT RUN: there is no %s ***", d.name, program)
			}
		}
		script += "printf '\\036'\n" + b.commands + "\n" // its output follows
	}
	checkout, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*rpcLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c",
		string(world))
	cmd.Env = append(os.Environ(), "DIR="+t.TempDir(), "BIN="+binDir, "CHECKOUT="+checkout, "HOSTS="+documentHosts,
		"COMMANDS="+script)
	out, err := cmd.CombinedOutput()
	before, rest, _ := strings.Cut(string(out), "\036")
	outputs := strings.Split(rest, "\036")
	for i, b := range d.blocks[:min(len(d.blocks), len(outputs))] {
		t.Logf("%s:%d:\n%s\n%s", d.name, b.line, b.commands, outputs[i])
		if !prints(b.shown, outputs[i]) {
			t.Errorf("%s:%d: the commands print\n%s\nwant\n%s", d.name, b.line, outputs[i], b.shown)
		}
	}
	if err != nil {
		t.Fatalf("the last commands failed: %v\n%s", err, before)
	}
}

// variable matches what may differ in an output, in a quoted regular expression: "...", IDs, numbers and spaces.
var variable = regexp.MustCompile(`(?:\\\.){3}|…|\b[0-9a-f]{7,}\b|\d[\d,]*(?:\\\.\d+)?|\s+`)

// prints reports whether an output has the lines that the page shows, in this order. The last document of
// JSON is compared, which may have more fields.
func prints(want, got string) bool {
	if strings.HasPrefix(want, "{") {
		var wanted, found any
		return json.Unmarshal([]byte(want), &wanted) == nil &&
			json.Unmarshal([]byte(got[strings.LastIndex("\n"+got, "\n{"):]), &found) == nil &&
			len(missing("", wanted, found)) == 0
	}
	pattern := variable.ReplaceAllStringFunc(regexp.QuoteMeta(strings.TrimSpace(want)), func(text string) string {
		switch {
		case strings.Contains(text, "\n"):
			return `\s*\n.*`
		case strings.TrimSpace(text) == "":
			return `\s+`
		case text == "…" || text[0] == '\\':
			return ".*"
		}
		return "[0-9a-f,.]+"
	})
	return regexp.MustCompile("(?s)" + pattern).MatchString(got)
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
