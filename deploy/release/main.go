// Command release makes the files of a release from built programs. The script .ci/release runs it at the root of the
// repository. The results depend only on the source, the version of Go and the Debian packages.
//
//	release [FLAGS] OS/ARCH...
//
// DIRECTORY/OS_ARCH/bin has the programs of a target. If DIRECTORY/ARCH.tar exists, it is the Debian root of an image.
package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"text/template"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// release is what all files have in common.
type release struct {
	Version  string
	revision string
	time     time.Time // of the commit
	work     string    // directory of programs and intermediate files
	dist     string
	bom      bom
	Archives map[string]string // SHA-256 of the archive of each OS_ARCH
}

//go:embed packhorse.rb packhorse.nix
var templates embed.FS

func main() {
	r := release{Archives: map[string]string{}}
	flag.StringVar(&r.Version, "version", "", "`VERSION` of the release")
	flag.StringVar(&r.revision, "revision", "", "`COMMIT` of the release")
	flag.StringVar(&r.work, "work", "", "`DIRECTORY` of the programs and of intermediate files")
	flag.StringVar(&r.dist, "dist", "dist", "`DIRECTORY` of the results")
	seconds := flag.Int64("time", 0, "`SECONDS` since 1970 of the commit")
	flag.Parse()
	r.time = time.Unix(*seconds, 0).UTC()

	var images []string // architectures
	for _, target := range flag.Args() {
		goos, arch := filepath.Split(target)
		name := filepath.Clean(goos) + "_" + arch
		tree := filepath.Join(r.work, name)
		r.stage(tree, filepath.Clean(goos), arch)
		full := fmt.Sprintf("packhorse_%s_%s", r.Version, name)
		r.Archives[name] = r.write(full+".tar.gz", zipped(r.tar(tree, full)))
		if goos != "linux/" {
			continue
		}
		r.pack("deb", tree, arch)
		r.pack("rpm", tree, arch)
		if _, err := os.Stat(filepath.Join(r.work, arch+".tar")); err == nil {
			images = append(images, arch)
		}
	}
	if len(images) > 0 {
		r.image(images)
	}
	r.chart()
	for _, name := range []string{"packhorse.rb", "packhorse.nix"} {
		var text bytes.Buffer
		check(must(template.ParseFS(templates, name)).Execute(&text, r))
		r.write(name, text.Bytes())
	}
	r.write("packhorse_"+r.Version+".spdx.json", r.bom.document(&r))
}

// check ends the program if err is not nil. Incomplete results have no checksums.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// write writes a result, and returns its SHA-256.
func (r *release) write(name string, content []byte) string {
	write(filepath.Join(r.dist, name), content)
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// pack writes the deb or the rpm of a tree.
func (r *release) pack(format, tree, arch string) {
	variables := map[string]string{"VERSION": r.Version, "ARCH": arch, "DIST": tree}
	value := func(name string) string { return variables[name] }
	config := must(nfpm.ParseFileWithEnvMapping("deploy/packages/nfpm.yaml", value))
	info := must(config.Get(format))
	info.MTime, info.RPM.BuildHost = r.time, "packhorse"
	packager := must(nfpm.Get(format))
	file := must(os.Create(filepath.Join(r.dist, packager.ConventionalFileName(nfpm.WithDefaults(info)))))
	check(cmp.Or(packager.Package(info, file), file.Close()))
}

var chartVersion = regexp.MustCompile(`(?m)^(version|appVersion):.*`)

// chart writes the Helm chart with the version of the release.
func (r *release) chart() {
	tree := filepath.Join(r.work, "chart")
	copyTo(tree, "deploy/helm/packhorse")
	name := filepath.Join(tree, "Chart.yaml")
	write(name, chartVersion.ReplaceAll(must(os.ReadFile(name)), []byte("${1}: "+r.Version)))
	r.write("packhorse-chart-"+r.Version+".tgz", zipped(r.tar(tree, "packhorse")))
}
