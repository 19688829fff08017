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
	"github.com/packhorse-git/packhorse/internal/git/mmap"
)

// maxChain bounds the layers of a split commit-graph; a layer counts those below it in one byte.
const maxChain = 256

func singlePath(objectDir string) string { return filepath.Join(objectDir, "info", "commit-graph") }

func chainPath(objectDir string) string {
	return filepath.Join(objectDir, "info", "commit-graphs", "commit-graph-chain")
}

func layerPath(objectDir, sum string) string {
	return filepath.Join(objectDir, "info", "commit-graphs", "graph-"+sum+".graph")
}

// loadDir opens the commit-graph of one object directory: the single file, as git does, else the chain. It returns what is
// usable, bottom layer first, and what was wrong with the rest.
func loadDir(dir string, all []string, format git.ObjectFormat) ([]layer, error) {
	single, err := openLayer(singlePath(dir), format)
	if err == nil && single.bases == 0 {
		return []layer{single}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	} else if err == nil {
		err = badFile("the single file names layers below itself")
	}
	layers, chainErr := loadChain(dir, all, format)
	return layers, errors.Join(err, chainErr)
}

// loadChain opens a split commit-graph (gitformat-commit-graph(5), "Split commit-graphs"). Layers may lie in any of the object
// directories. As in git, the layers up to the first bad one are used.
func loadChain(dir string, all []string, format git.ObjectFormat) ([]layer, error) {
	text, err := readChain(chainPath(dir), format)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(fault.Corrupt, "reading the commit-graph chain", err)
	}
	sums, err := parseChain(text, format)
	var layers []layer
	for _, sum := range sums {
		l, openErr := openBelow(sum, all, format, layers)
		if openErr != nil {
			return layers, errors.Join(err, openErr)
		}
		layers = append(layers, l)
	}
	return layers, err
}

// readChain reads no more of the file than a chain of the most layers and one has.
func readChain(path string, format git.ObjectFormat) ([]byte, error) {
	f, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64((maxChain+1)*(format.HexSize()+1))))
}

// parseChain reads the list of checksums, bottom first; it returns those before the first bad line.
func parseChain(text []byte, format git.ObjectFormat) ([]string, error) {
	var sums []string
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		text = rest
		if _, err := hex.DecodeString(string(line)); err != nil || len(line) != format.HexSize() {
			return sums, badFile("line %d of the chain is no checksum", len(sums)+1)
		}
		if len(sums) == maxChain {
			return sums, badFile("a chain of more than %d layers", maxChain)
		}
		sums = append(sums, string(bytes.ToLower(line)))
	}
	return sums, nil
}

// openBelow finds the layer of this checksum that stands on the given ones.
func openBelow(sum string, dirs []string, format git.ObjectFormat, below []layer) (layer, error) {
	var l layer
	var err error = fs.ErrNotExist
	for _, dir := range dirs {
		l, err = openLayer(layerPath(dir, sum), format)
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
		return l, badFile("layer %s stands on %d others, not on %d", sum, l.bases, len(below))
	}
	err = l.file.Do(func(b []byte) error {
		for i := range below {
			if l.sumBelow(b, i) != below[i].sum {
				return badFile("layer %s stands on other layers than the chain says", sum)
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

// openLayer maps one file; fs.ErrNotExist if there is none.
func openLayer(path string, format git.ObjectFormat) (layer, error) {
	file, err := mmap.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return layer{}, err
		}
		return layer{}, fault.Wrap(fault.Corrupt, "opening the commit-graph", err)
	}
	var l layer
	err = file.Do(func(b []byte) error {
		l, err = parseLayer(b, format)
		return err
	})
	l.file = file
	return l, err
}
