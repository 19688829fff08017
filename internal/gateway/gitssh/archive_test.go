package gitssh

import (
	"bufio"
	"reflect"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
)

func TestParseArchive(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]node.Archive{
		"main":                          {Revision: "main", Format: "tar", Paths: []string{}},
		"--format=tgz|main":             {Revision: "main", Format: "tar.gz", Paths: []string{}},
		"--format|zip|-9|-v|main|a|b":   {Revision: "main", Format: "zip", Paths: []string{"a", "b"}},
		"--prefix=a/|--|-x|--output=x":  {Revision: "-x", Format: "tar", Prefix: "a/", Paths: []string{"--output=x"}},
		"main|--prefix|--format=x|main": {Revision: "main", Format: "tar", Prefix: "--format=x", Paths: []string{"main"}},
	} {
		got, err := parseArchive(strings.Split(line, "|"))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", line, got, err, want)
		}
	}
	for _, line := range []string{"", "--format", "main|--prefix", "--output=x|main", "-o|x|main", "--exec=x|main",
		"-c|main", "--remote=x|main", "-10|main", "--add-file=/etc/passwd|main", "--list", "\xff", "--", "--prefix=a/"} {
		if a, err := parseArchive(strings.Split(line, "|")); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %+v, %v; want Invalid", line, a, err)
		}
	}
}

func TestReadArguments(t *testing.T) {
	t.Parallel()
	arguments := func(args ...string) string {
		var b []byte
		for _, arg := range args {
			b = pktline.AppendLine(b, "argument "+arg)
		}
		return string(b)
	}
	got, err := readArguments(bufio.NewReader(strings.NewReader(arguments("--prefix=a\nb", "main") + "0000rest")))
	if err != nil || !reflect.DeepEqual(got, []string{"--prefix=a\nb", "main"}) {
		t.Errorf("arguments: %q, %v", got, err)
	}
	many := make([]string, maxArguments+1)
	for name, in := range map[string]string{
		"nothing": "", "no flush": arguments("main"), "no packet": "hello", "another word": "0009other0000",
		"a delimiter": "0001", "many": arguments(many...) + "0000",
		"long": arguments(strings.Repeat("x", 50_000), strings.Repeat("x", 50_000)) + "0000", "cut": "0020argument x",
	} {
		if got, err := readArguments(bufio.NewReader(strings.NewReader(in))); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %q, %v; want Invalid", name, got, err)
		}
	}
}
