// Command typecheck checks the types of packages and their tests for another operating system. It reads dependencies
// from source and skips their function bodies. go vet compiles them, which takes minutes of CPU time instead of
// seconds.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

func main() {
	system := flag.String("goos", "darwin", "operating system")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: typecheck [-goos SYSTEM] [PATTERN...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	failures, err := check(*system, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	slices.Sort(failures)
	for _, failure := range slices.Compact(failures) { // a package and its test variant have the same errors
		fmt.Fprintln(os.Stderr, failure)
	}
	if err != nil || len(failures) > 0 {
		os.Exit(1)
	}
}

// listedPackage is a package in the output of go list.
type listedPackage struct {
	Dir, ImportPath string
	GoFiles         []string
	Imports         []string          // paths of listed packages
	ImportMap       map[string]string // import path in the source to the path of the listed package
	DepOnly         bool              // not named by the patterns
	ForTest         string            // the package whose test this variant is built for
	Module          *struct{ GoVersion string }

	done  chan struct{} // closed when types is set
	types *types.Package
}

// check returns the errors in the packages of the patterns.
func check(system string, patterns []string) ([]string, error) {
	list, err := list(system, patterns)
	if err != nil {
		return nil, err
	}
	packages := map[string]*listedPackage{"unsafe": {done: make(chan struct{}), types: types.Unsafe}}
	close(packages["unsafe"].done)
	for _, p := range list {
		if p.ImportPath != "unsafe" {
			p.done = make(chan struct{})
			packages[p.ImportPath] = p
		}
	}
	c := &checker{files: token.NewFileSet(), packages: packages}
	var group sync.WaitGroup
	for _, p := range list {
		if p.ImportPath != "unsafe" {
			group.Go(func() { c.check(p) })
		}
	}
	group.Wait()
	return c.failures, nil
}

// list returns the packages of the patterns, their tests and their dependencies.
func list(system string, patterns []string) ([]*listedPackage, error) {
	fields := "-json=Dir,ImportPath,GoFiles,Imports,ImportMap,DepOnly,ForTest,Module"
	cmd := exec.Command("go", append([]string{"list", "-deps", "-test", fields, "--"}, patterns...)...)
	cmd.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []*listedPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		p := new(listedPackage)
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("output of go list: %w", err)
		}
		if strings.HasSuffix(p.ImportPath, ".test") { // its main function is generated
			continue
		}
		packages = append(packages, p)
	}
}

// checker checks packages in parallel. Each package waits for its imports.
type checker struct {
	files    *token.FileSet
	packages map[string]*listedPackage // by import path

	mu       sync.Mutex
	failures []string
}

// check sets the types of a package.
func (c *checker) check(p *listedPackage) {
	defer close(p.done)
	isDependency := p.DepOnly && p.ForTest == ""
	files, err := c.parse(p)
	if err != nil {
		c.fail(err)
		return
	}
	for _, path := range p.Imports {
		if imported := c.packages[path]; imported != nil {
			<-imported.done
		}
	}
	config := types.Config{
		IgnoreFuncBodies: isDependency,
		FakeImportC:      true,
		Sizes:            types.SizesFor("gc", "arm64"),
		Importer:         importer(func(path string) (*types.Package, error) { return c.imported(p, path) }),
		Error: func(err error) {
			if !isDependency {
				c.fail(err)
			}
		},
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // "path [path.test]"
	p.types, _ = config.Check(path, c.files, files, nil)
}

func (c *checker) parse(p *listedPackage) ([]*ast.File, error) {
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(c.files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func (c *checker) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err.Error())
}

// imported returns the package that p imports by this path.
func (c *checker) imported(p *listedPackage, path string) (*types.Package, error) {
	if mapped, ok := p.ImportMap[path]; ok {
		path = mapped
	}
	imported := c.packages[path]
	if imported == nil || imported.types == nil {
		return nil, fmt.Errorf("package %s is not available", path)
	}
	return imported.types, nil
}

// importer implements types.Importer.
type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
