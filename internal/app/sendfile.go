package app

import "os"

// root is a directory that files are sent from.
type root struct {
	FileRoot
	dir *os.Root
}

func openRoots(files []FileRoot) ([]root, error) {
	var roots []root
	for _, f := range files {
		dir, err := os.OpenRoot(f.Dir)
		if err != nil {
			closeRoots(roots)
			return nil, err
		}
		roots = append(roots, root{f, dir})
	}
	return roots, nil
}

func closeRoots(roots []root) {
	for _, r := range roots {
		r.dir.Close()
	}
}

// appendFiles tells a worker how it may have files sent, in the way of Rack::Sendfile.
func (p *Proxy) appendFiles(b []byte) []byte {
	b = appendField(b, "X-Sendfile-Type", p.FileHeader)
	return b
}
