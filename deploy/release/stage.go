package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/packhorse-git/packhorse/internal/bench"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/server/command"
)

// stage completes the tree of a target: what is installed below /usr or /usr/local.
func (r *release) stage(tree, goos, arch string) {
	docs := filepath.Join(tree, "share/doc/packhorse")
	for _, name := range []string{"LICENSE", "CHANGELOG.md"} {
		copyTo(docs, name)
	}
	copyTo(docs, "deploy/packages/serve.toml")
	copyTo(docs+"/examples", "examples")
	if goos == "linux" {
		copyTo(filepath.Join(tree, "lib/systemd/system"), "deploy/systemd")
	}
	write(docs+"/THIRD-PARTY-LICENSES", licenses(goos, arch))
	for _, root := range []*cobra.Command{command.Command(command.Env{}), bench.Command(loadgen.Env{})} {
		r.manPages(filepath.Join(tree, "share/man/man1"), root)
		var bash, zsh, fish bytes.Buffer
		check(cmp.Or(root.GenBashCompletionV2(&bash, true), root.GenZshCompletion(&zsh), root.GenFishCompletion(&fish, true)))
		write(filepath.Join(tree, "share/bash-completion/completions", root.Name()), bash.Bytes())
		write(filepath.Join(tree, "share/zsh/site-functions/_"+root.Name()), zsh.Bytes())
		write(filepath.Join(tree, "share/fish/vendor_completions.d", root.Name()+".fish"), fish.Bytes())
	}
	r.bom.addPrograms(tree, goos, arch, r.Version)
	check(filepath.WalkDir(tree, func(name string, _ fs.DirEntry, err error) error {
		return cmp.Or(err, os.Chtimes(name, r.time, r.time)) // which nfpm uses
	}))
}

// markdown escapes what cobra's generator takes for Markdown.
var markdown = strings.NewReplacer(`<`, `\<`, `*`, `\*`, `_`, `\_`)

// manPages writes the pages of a command and its subcommands.
func (r *release) manPages(dir string, cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	cmd.Short, cmd.Long = markdown.Replace(cmd.Short), markdown.Replace(cmd.Long)
	var page bytes.Buffer
	check(doc.GenMan(cmd, &doc.GenManHeader{Date: &r.time, Source: "Packhorse " + r.Version, Manual: "Packhorse"}, &page))
	write(filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1.gz"), zipped(page.Bytes()))
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			r.manPages(dir, sub)
		}
	}
}

var licenseFiles = []string{"LICENSE*", "LICENCE*", "License*", "COPYING*", "NOTICE*", "PATENTS*"}

// licenses returns the texts of all modules that the programs link, and of Go.
func licenses(goos, arch string) []byte {
	list := exec.Command("go", "list", "-deps", "-f",
		`{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}},{{.Dir}},{{$.Dir}}{{end}}{{end}}`, "./cmd/...")
	list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	packages := string(must(list.Output()))
	golang := strings.TrimSpace(string(must(exec.Command("go", "env", "GOROOT").Output())))
	files := map[string][]string{} // of a module
	for line := range strings.Lines("Go," + golang + "," + golang + "\n" + packages) {
		fields := strings.Split(strings.TrimSpace(line), ",")
		module, top, dir := fields[0], fields[1], fields[2]
		for ; strings.HasPrefix(dir, top); dir = filepath.Dir(dir) {
			for _, pattern := range licenseFiles {
				files[module] = append(files[module], must(filepath.Glob(filepath.Join(dir, pattern)))...)
			}
		}
		if len(files[module]) == 0 {
			check(fmt.Errorf("module %s has no license file in %s", module, top))
		}
	}
	var all bytes.Buffer
	for _, module := range slices.Sorted(maps.Keys(files)) {
		slices.Sort(files[module])
		for _, name := range slices.Compact(files[module]) {
			text := bytes.TrimSpace(must(os.ReadFile(name)))
			fmt.Fprintf(&all, "===== %s: %s =====\n\n%s\n\n", module, filepath.Base(name), text)
		}
	}
	return all.Bytes()
}

// copyTo copies a file, or the files below a directory, to a directory.
func copyTo(dir, from string) {
	check(filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			write(filepath.Join(dir, cmp.Or(strings.TrimPrefix(name, from), filepath.Base(name))), must(os.ReadFile(name)))
		}
		return err
	}))
}

// write writes a file that all may read, and creates its directory.
func write(name string, content []byte) {
	check(cmp.Or(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, content, 0o644)))
}

func zipped(content []byte) []byte {
	var result bytes.Buffer
	zip := must(gzip.NewWriterLevel(&result, gzip.BestCompression))
	must(zip.Write(content))
	check(zip.Close())
	return result.Bytes()
}

// tar returns the tree below prefix: sorted, owned by root, and with the usual modes.
func (r *release) tar(tree, prefix string) []byte {
	var result bytes.Buffer
	out := tar.NewWriter(&result)
	check(filepath.WalkDir(tree, func(name string, entry fs.DirEntry, err error) error {
		check(err)
		header := must(tar.FileInfoHeader(must(entry.Info()), ""))
		mode := int64(0o644 | header.Mode&0o111)
		*header = tar.Header{Typeflag: header.Typeflag, Size: header.Size, Mode: mode, ModTime: r.time,
			Name: filepath.Join(prefix, must(filepath.Rel(tree, name)))}
		if entry.IsDir() {
			header.Name += "/"
			return out.WriteHeader(header)
		}
		check(out.WriteHeader(header))
		must(out.Write(must(os.ReadFile(name))))
		return nil
	}))
	check(out.Close())
	return result.Bytes()
}
