package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// dist returns the directory of a release.
func dist(t *testing.T) string {
	dir := os.Getenv("PACKHORSE_TEST_DIST")
	if dir == "" {
		t.Skip("*** NO RELEASE IS TESTED: set PACKHORSE_TEST_DIST to its directory, or run make test-release ***")
	}
	return dir
}

// one returns the name and the content of the only file that matches a pattern.
func one(t *testing.T, pattern string) (string, []byte) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dist(t), pattern))
	if err != nil || len(names) != 1 {
		t.Fatalf("files that match %s: %q, want one", pattern, names)
	}
	content, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	return names[0], content
}

// unpack writes the files of an archive below a new directory.
func unpack(t *testing.T, content []byte) string {
	t.Helper()
	if zip, err := gzip.NewReader(bytes.NewReader(content)); err == nil {
		if content, err = io.ReadAll(zip); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	in := tar.NewReader(bytes.NewReader(content))
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return dir
		} else if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, header.Name)
		if header.Uid != 0 || header.Gid != 0 || header.Mode&0o022 != 0 {
			t.Errorf("%s belongs to %d:%d and has mode %o", header.Name, header.Uid, header.Gid, header.Mode)
		}
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(name, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(name), 0o755); err == nil {
			var text []byte
			if text, err = io.ReadAll(in); err == nil {
				err = os.WriteFile(name, text, os.FileMode(header.Mode))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestChecksums checks that SHA256SUMS has all files, and its signature.
func TestChecksums(t *testing.T) {
	dir := dist(t)
	name, sums := one(t, "SHA256SUMS")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "SHA256SUMS") || entry.IsDir() {
			continue
		}
		_, content := one(t, entry.Name())
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(content), entry.Name()); !bytes.Contains(sums, []byte(line)) {
			t.Errorf("SHA256SUMS has no line %s", line)
		}
	}
	key := os.Getenv("PACKHORSE_TEST_RELEASE_KEY")
	if key == "" {
		t.Skip("*** THE SIGNATURE IS NOT TESTED: PACKHORSE_TEST_RELEASE_KEY names the public key ***")
	}
	public, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	signers := filepath.Join(t.TempDir(), "allowed_signers")
	line := `releases@packhorse namespaces="packhorse-release" ` + string(public)
	if err := os.WriteFile(signers, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tampered := range []bool{false, true} {
		verify := exec.Command("ssh-keygen", "-Y", "verify", "-f", signers, "-I", "releases@packhorse", "-n",
			"packhorse-release", "-s", name+".sig")
		text := sums
		if tampered {
			text = append(sums, '\n')
		}
		verify.Stdin = bytes.NewReader(text)
		if out, err := verify.CombinedOutput(); (err != nil) != tampered {
			t.Errorf("verifying the checksums, changed: %v: %v: %s", tampered, err, out)
		}
	}
}

// TestArchives checks the programs and the other files of each archive.
func TestArchives(t *testing.T) {
	archives, err := filepath.Glob(filepath.Join(dist(t), "packhorse_*.tar.gz"))
	if err != nil || len(archives) == 0 {
		t.Fatalf("%d archives", len(archives))
	}
	_, formula := one(t, "packhorse.rb")
	_, nix := one(t, "packhorse.nix")
	for _, archive := range archives {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, content := one(t, filepath.Base(archive))
			sum := fmt.Sprintf("%x", sha256.Sum256(content))
			if !bytes.Contains(formula, []byte(sum)) || !bytes.Contains(nix, []byte(sum)) {
				t.Errorf("the formula or the Nix expression does not have the checksum %s", sum)
			}
			tree := filepath.Join(unpack(t, content), name)
			fields := strings.Split(name, "_") // packhorse, version, system, architecture
			for _, program := range []string{"packhorse", "packhorse-search", "packhorse-bench"} {
				checkProgram(t, filepath.Join(tree, "bin", program), fields[1], fields[2], fields[3])
			}
			checkTexts(t, tree)
			_, err := os.Stat(filepath.Join(tree, "lib/systemd/system/packhorse-serve.service"))
			if (err == nil) != (fields[2] == "linux") {
				t.Errorf("systemd units on %s: %v", fields[2], err)
			}
		})
	}
}

// checkProgram checks that a program is static and portable, and its version where it can run.
func checkProgram(t *testing.T, program, version, system, arch string) {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	if settings["GOOS"] != system || settings["GOARCH"] != arch || settings["CGO_ENABLED"] != "0" ||
		settings["-trimpath"] != "true" {
		t.Errorf("%s: settings %v", program, settings)
	}
	if level := settings["GOAMD64"] + settings["GOARM64"]; level != "v1" && level != "v8.0" {
		t.Errorf("%s needs a processor of level %s", program, level)
	}
	if system != "linux" || runtime.GOOS != "linux" {
		return
	}
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if libraries, err := file.ImportedLibraries(); len(libraries) > 0 {
		t.Errorf("%s needs %q, %v", program, libraries, err)
	}
	run := []string{program, "--version"}
	if arch != runtime.GOARCH {
		emulator, err := exec.LookPath("qemu-" + map[string]string{"arm64": "aarch64", "amd64": "x86_64"}[arch] + "-static")
		if err != nil {
			t.Logf("*** %s IS NOT RUN: it needs qemu-user-static ***", program)
			return
		}
		run = append([]string{emulator}, run...)
	}
	out, err := exec.Command(run[0], run[1:]...).Output()
	want := regexp.MustCompile(`^` + filepath.Base(program) + ` (version )?` + regexp.QuoteMeta(version) +
		`( \([0-9a-f]{12}\b.*\))?\n$`)
	if err != nil || !want.Match(out) {
		t.Errorf("%s: %v, %q, want %s", run, err, out, want)
	}
}

// checkTexts checks man pages, completions, licenses and examples.
func checkTexts(t *testing.T, tree string) {
	t.Helper()
	for _, name := range []string{"CHANGELOG.md", "LICENSE", "serve.toml", "examples/serve.toml"} {
		if _, err := os.Stat(filepath.Join(tree, "share/doc/packhorse", name)); err != nil {
			t.Error(err)
		}
	}
	licenses, err := os.ReadFile(filepath.Join(tree, "share/doc/packhorse/THIRD-PARTY-LICENSES"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(filepath.Join(tree, "bin/packhorse"))
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range info.Deps {
		if !bytes.Contains(licenses, []byte("===== "+module.Path+" "+module.Version+":")) {
			t.Errorf("THIRD-PARTY-LICENSES does not have %s %s", module.Path, module.Version)
		}
	}
	for _, name := range []string{"packhorse", "packhorse-serve", "packhorse-repo-create", "packhorse-search"} {
		page, err := os.Open(filepath.Join(tree, "share/man/man1", name+".1.gz"))
		if err != nil {
			t.Fatal(err)
		}
		defer page.Close()
		zip, err := gzip.NewReader(page)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(zip)
		if err != nil || !bytes.Contains(text, []byte(`.TH "`+strings.ToUpper(name))) {
			t.Errorf("the page %s begins with %.100s, %v", name, text, err)
		}
	}
	for shell, script := range map[string]string{"bash": "bash-completion/completions/packhorse",
		"zsh": "zsh/site-functions/_packhorse", "fish": "fish/vendor_completions.d/packhorse.fish"} {
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("*** completions of %s ARE NOT CHECKED: it is not installed ***", shell)
			continue
		}
		if out, err := exec.Command(shell, "-n", filepath.Join(tree, "share", script)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
}

// TestChart checks the version of the chart, which is that of the image.
func TestChart(t *testing.T) {
	name, content := one(t, "packhorse-chart-*.tgz")
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "packhorse-chart-"), ".tgz")
	text, err := os.ReadFile(filepath.Join(unpack(t, content), "packhorse/Chart.yaml"))
	if err != nil || !strings.Contains(string(text), "\nversion: "+version+"\nappVersion: "+version+"\n") {
		t.Errorf("Chart.yaml: %v\n%s", err, text)
	}
}

// TestBOM checks that the document has the modules of the programs, and no relation to unknown packages.
func TestBOM(t *testing.T) {
	_, content := one(t, "packhorse_*.spdx.json")
	var document struct {
		Packages []struct {
			ID        string `json:"SPDXID"`
			Name      string
			Checksums []any
		}
		Relationships []struct{ SPDXElementID, RelatedSPDXElement string }
	}
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"SPDXRef-DOCUMENT": true}
	names := map[string]bool{}
	for _, p := range document.Packages {
		known[p.ID], names[p.Name] = true, true
	}
	for _, relation := range document.Relationships {
		if !known[relation.SPDXElementID] || !known[relation.RelatedSPDXElement] {
			t.Errorf("relation of unknown packages: %v", relation)
		}
	}
	for _, name := range []string{"stdlib", "github.com/spf13/cobra", "golang.org/x/crypto"} {
		if !names[name] {
			t.Errorf("the document has no package %s", name)
		}
	}
}

// TestImage checks the digests, sizes and configuration of the image, and the files of its packages.
func TestImage(t *testing.T) {
	if os.Getenv("IMAGE") == "no" {
		dist(t)
		t.Skip("*** NO IMAGE IS TESTED: IMAGE=no ***")
	}
	_, content := one(t, "packhorse_*_oci.tar")
	named, err := layout.ImageIndexFromPath(unpack(t, content))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(named); err != nil {
		t.Fatal(err)
	}
	manifest, err := named.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the layout has the images %v, %v, want one", manifest, err)
	}
	index, err := named.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	platforms, err := index.IndexManifest()
	if err != nil || len(platforms.Manifests) == 0 {
		t.Fatalf("platforms: %v, %v", platforms, err)
	}
	for _, platform := range platforms.Manifests {
		t.Run(platform.Platform.String(), func(t *testing.T) {
			image, err := index.Image(platform.Digest)
			if err != nil {
				t.Fatal(err)
			}
			checkImage(t, image, platform.Platform.Architecture)
		})
	}
}

func checkImage(t *testing.T, image v1.Image, arch string) {
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != arch || config.Config.User != "10001:10001" || config.RootFS.Type != "layers" {
		t.Errorf("configuration: %+v", config)
	}
	content := mutate.Extract(image)
	defer content.Close()
	missing := map[string]bool{}
	for name := range strings.FieldsSeq(`usr/bin/git usr/bin/sh usr/lib/git-core/git-remote-https usr/share/doc/git/copyright
		usr/local/bin/packhorse usr/local/bin/packhorse-search etc/ssl/certs/ca-certificates.crt etc/passwd
		var/lib/dpkg/status var/lib/packhorse`) {
		missing[name] = true
	}
	for in := tar.NewReader(content); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := filepath.Clean(header.Name)
		delete(missing, name)
		if name == "var/lib/packhorse" && (header.Uid != 10001 || header.Mode&0o777 != 0o750) {
			t.Errorf("%s belongs to %d and has mode %o", name, header.Uid, header.Mode)
		}
		if header.Typeflag == tar.TypeReg && header.Mode&0o6000 != 0 {
			t.Errorf("%s runs with the rights of its owner", name)
		}
		isList := strings.HasPrefix(name, "var/lib/apt/lists/") && header.Size > 0
		if name == "etc/resolv.conf" || name == "etc/hostname" || isList {
			t.Errorf("%s comes from the machine of the build", name)
		}
	}
	if len(missing) > 0 {
		t.Errorf("the image does not have %v", missing)
	}
}
