package gittest

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// templates holds the files of repositories that are made more than once: *template by what they are made of.
var templates sync.Map

// template is the content of a directory.
type template []templateFile

type templateFile struct {
	path string
	mode fs.FileMode
	data []byte // nil: a directory
}

// fromTemplate makes dir as build makes an empty one. build runs once for each key, which names all that it depends on.
func fromTemplate(t testing.TB, key any, dir string, build func(dir string)) {
	t.Helper()
	made, ok := templates.Load(key)
	if !ok {
		build(dir)
		read, err := readTemplate(dir)
		if err != nil {
			t.Fatal(err)
		}
		templates.Store(key, read)
		return
	}
	if err := made.(template).write(dir); err != nil {
		t.Fatal(err)
	}
}

func readTemplate(dir string) (files template, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		f := templateFile{path: path[len(dir):]}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		f.mode = info.Mode().Perm()
		if !entry.IsDir() {
			f.data, err = os.ReadFile(path)
		}
		files = append(files, f)
		return err
	})
	return files, err
}

func (files template) write(dir string) error {
	for _, f := range files {
		var err error
		if f.data == nil {
			err = os.MkdirAll(dir+f.path, f.mode)
		} else {
			err = os.WriteFile(dir+f.path, f.data, f.mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
