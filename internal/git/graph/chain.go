package graph

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// maxChain is the maximum number of layers of a split commit-graph. A layer has the number of those below it in a byte.
const maxChain = 256

func singlePath(objectDir string) string { return filepath.Join(objectDir, "info", "commit-graph") }

func chainPath(objectDir string) string {
	return filepath.Join(objectDir, "info", "commit-graphs", "commit-graph-chain")
}

func layerPath(objectDir, sum string) string {
	return filepath.Join(objectDir, "info", "commit-graphs", "graph-"+sum+".graph")
}

// files opens the commit-graph files in a repository's object directories.
type files struct {
	dirs   []string
	format git.ObjectFormat
	inside func(path string) bool // nil: anywhere
}

// load opens the commit-graph of one object directory: like git, the single file if it exists, otherwise the chain. It
// returns the usable layers, bottom first, and an error for the others.
func (f files) load(dir string) ([]layer, error) {
	single, err := f.openLayer(singlePath(dir))
	if err == nil && single.bases == 0 {
		return []layer{single}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	} else if err == nil {
		err = badFile("the single file has layers below it")
	}
	layers, chainErr := f.loadChain(dir)
	return layers, errors.Join(err, chainErr)
}

// loadChain opens a split commit-graph (gitformat-commit-graph(5), "Split commit-graphs"). Its layers may be in any of
// the object directories. As in git, the layers below the first bad one are used.
func (f files) loadChain(dir string) ([]layer, error) {
	text, err := f.readChain(chainPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(fault.Corrupt, "reading the commit-graph chain", err)
	}
	sums, err := parseChain(text, f.format)
	var layers []layer
	for _, sum := range sums {
		l, openErr := f.openBelow(sum, layers)
		if openErr != nil {
			return layers, errors.Join(err, openErr)
		}
		layers = append(layers, l)
	}
	return layers, err
}

// readChain reads at most one line more of the file than a valid chain has.
func (f files) readChain(path string) ([]byte, error) {
	if err := f.checkContained(path); err != nil {
		return nil, err
	}
	file, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, int64((maxChain+1)*(f.format.HexSize()+1))))
}

// parseChain reads the list of checksums, bottom first. It returns those before the first invalid line.
func parseChain(text []byte, format git.ObjectFormat) ([]string, error) {
	var sums []string
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		text = rest
		if _, err := hex.DecodeString(string(line)); err != nil || len(line) != format.HexSize() {
			return sums, badFile("line %d of the chain is not a checksum", len(sums)+1)
		}
		if len(sums) == maxChain {
			return sums, badFile("a chain of more than %d layers", maxChain)
		}
		sums = append(sums, string(bytes.ToLower(line)))
	}
	return sums, nil
}

// openBelow finds the layer with this checksum that is based on the given layers.
func (f files) openBelow(sum string, below []layer) (layer, error) {
	var l layer
	var err error = fs.ErrNotExist
	for _, dir := range f.dirs {
		l, err = f.openLayer(layerPath(dir, sum))
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return l, fault.Wrap(fault.Corrupt, "opening commit-graph layer "+sum, err)
	}
	if l.sum != sum {
		return l, badFile("layer %s has the checksum %s", sum, l.sum)
	}
	if l.bases != len(below) {
		return l, badFile("layer %s has %d layers below it, the chain has %d", sum, l.bases, len(below))
	}
	err = l.file.Do(func(b []byte) error {
		for i := range below {
			if l.sumBelow(b, i) != below[i].sum {
				return badFile("layer %s is based on other layers than those of the chain", sum)
			}
		}
		return nil
	})
	if len(below) > 0 {
		top := &below[len(below)-1]
		l.base = top.base + top.n
	}
	if uint64(l.base)+uint64(l.n) >= maxCommits {
		return l, badFile("too many commits")
	}
	return l, err
}

// openLayer maps one file. The error is fs.ErrNotExist if there is none.
func (f files) openLayer(path string) (layer, error) {
	if err := f.checkContained(path); err != nil {
		return layer{}, err
	}
	file, err := disk.MapFile(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return layer{}, err
		}
		return layer{}, fault.Wrap(fault.Corrupt, "opening the commit-graph", err)
	}
	var l layer
	err = file.Do(func(b []byte) error {
		l, err = parseLayer(b, f.format)
		return err
	})
	l.file = file
	return l, err
}

// checkContained returns an error if a file is a link to outside the allowed directories, and fs.ErrNotExist if there
// is no such file.
func (f files) checkContained(path string) error {
	if f.inside == nil {
		return nil
	}
	real, err := filepath.EvalSymlinks(path)
	if err == nil && !f.inside(real) {
		err = badFile("%s is a link to outside the served root", filepath.Base(path))
	}
	return err
}
