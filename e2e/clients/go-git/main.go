// Command go-git drives the go-git library. See clients_test.go in e2e for the operations.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/go-git/go-git/v5/storage/memory"
	crypto "golang.org/x/crypto/ssh"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil && !errors.Is(err, git.NoErrAlreadyUpToDate) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(op string, args []string) error {
	switch op {
	case "version":
		info, _ := debug.ReadBuildInfo()
		for _, m := range info.Deps {
			if m.Path == "github.com/go-git/go-git/v5" {
				fmt.Println(m.Version)
			}
		}
		return nil
	case "ls-remote":
		return list(args[0])
	case "clone":
		return clone(args[1], &git.CloneOptions{URL: args[0], Tags: git.AllTags})
	case "branch":
		return single(args, args[2], 0)
	case "shallow":
		depth, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return single(args, "main", depth)
	case "fetch":
		return fetch(args[0], &git.FetchOptions{Tags: git.TagFollowing})
	case "tags":
		return fetch(args[0], &git.FetchOptions{Tags: git.AllTags})
	case "deepen":
		depth, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return fetch(args[0], &git.FetchOptions{Tags: git.NoTags, Depth: depth})
	case "push":
		return push(args[0], args[1], args[2])
	}
	return fmt.Errorf("go-git has nothing for %s", op)
}

func list(url string) error {
	remote := git.NewRemote(memory.NewStorage(), &config.RemoteConfig{Name: "origin", URLs: []string{url}})
	refs, err := remote.List(&git.ListOptions{})
	if err != nil {
		return err
	}
	ids := map[plumbing.ReferenceName]plumbing.Hash{}
	for _, ref := range refs {
		ids[ref.Name()] = ref.Hash()
	}
	for _, ref := range refs {
		id := ref.Hash()
		if ref.Type() == plumbing.SymbolicReference {
			id = ids[ref.Target()]
		}
		fmt.Printf("%s\t%s\n", id, ref.Name())
	}
	return nil
}

func clone(dir string, options *git.CloneOptions) error {
	options.NoCheckout = true
	_, err := git.PlainClone(dir, false, options)
	return err
}

func single(args []string, branch string, depth int) error {
	return clone(args[1], &git.CloneOptions{
		URL: args[0], Tags: git.NoTags, SingleBranch: true, ReferenceName: plumbing.NewBranchReferenceName(branch),
		Depth: depth,
	})
}

// push sends a branch; over SSH with the key in the file $KEY, to any host.
func push(dir, url, branch string) error {
	repo, err := git.PlainOpen(dir)
	if err != nil {
		return err
	}
	ref := "refs/heads/" + branch
	options := &git.PushOptions{RemoteName: "origin", RefSpecs: []config.RefSpec{config.RefSpec(ref + ":" + ref)}}
	if strings.HasPrefix(url, "ssh://") {
		keys, err := ssh.NewPublicKeysFromFile("git", os.Getenv("KEY"), "")
		if err != nil {
			return err
		}
		keys.HostKeyCallback = crypto.InsecureIgnoreHostKey()
		options.Auth = keys
	}
	return git.NewRemote(repo.Storer, &config.RemoteConfig{Name: "origin", URLs: []string{url}}).Push(options)
}

func fetch(dir string, options *git.FetchOptions) error {
	repo, err := git.PlainOpen(dir)
	if err != nil {
		return err
	}
	return repo.Fetch(options)
}
