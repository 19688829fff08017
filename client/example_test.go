package client_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/client"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Make a repository, look a ref up, and tell errors apart.
func Example() {
	address, stop := startNode()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	node, err := client.New(address, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	made, err := node.Repositories().Create(ctx, connect.NewRequest(&packhorsev1.CreateRequest{Repository: "team/app"}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("made", made.Msg.GetRepository().GetPath())

	resolve := &packhorsev1.ResolveRequest{Repository: "demo", Name: "main"}
	found, err := node.Refs().Resolve(ctx, connect.NewRequest(resolve))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(found.Msg.GetRef().GetName(), "is", found.Msg.GetRef().GetOid()[:7])

	resolve.Name = "nothing"
	_, err = node.Refs().Resolve(ctx, connect.NewRequest(resolve))
	fmt.Println("found:", !client.IsNotFound(err))
	// Output:
	// made team/app.git
	// refs/heads/main is 9134e03
	// found: false
}

func ExampleClient_AllRefs() {
	address, stop := startNode()
	defer stop()
	node, err := client.New(address, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	request := &packhorsev1.RefServiceListRequest{Repository: "demo", Peel: true}
	for ref, err := range node.AllRefs(context.Background(), request) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(ref.GetName(), ref.GetPeeled() != "")
	}
	// Output:
	// refs/heads/main false
	// refs/tags/v1 true
}

func ExampleClient_Commits() {
	address, stop := startNode()
	defer stop()
	node, err := client.New(address, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	for commit, err := range node.Commits(context.Background(),
		&packhorsev1.LogRequest{Repository: "demo", Revisions: []string{"main"}}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s", commit.GetAuthor().GetName(), commit.GetMessage())
	}
	// Output:
	// Ada: go on
	// Ada: begin
}

func ExampleClient_OpenBlob() {
	address, stop := startNode()
	defer stop()
	node, err := client.New(address, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	file := &packhorsev1.RevisionPath{Revision: "main", Path: "README"}
	blob, err := node.OpenBlob(context.Background(), &packhorsev1.BlobRequest{Repository: "demo",
		Blob: &packhorsev1.BlobRequest_Path{Path: file}})
	if err != nil {
		log.Fatal(err)
	}
	defer blob.Close()
	fmt.Printf("%d bytes, mode %o\n", blob.Size, blob.Mode)
	if _, err := io.Copy(os.Stdout, blob); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 14 bytes, mode 100644
	// Hello, world.
}

// A cache of refs follows all changes of a repository.
func ExampleClient_Watch() {
	address, stop := startNode()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	node, err := client.New(address, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	request := &packhorsev1.WatchRequest{Repositories: []*packhorsev1.WatchedRepository{{Repository: "soon"}}}
	for event, err := range node.Watch(ctx, request) {
		switch {
		case err != nil:
			fmt.Println("what is known may be old, and is asked for again:", err)
		case event.GetMissing():
			fmt.Println(event.GetRepository(), "is not there")
			create := &packhorsev1.CreateRequest{Repository: "soon"}
			if _, err := node.Repositories().Create(ctx, connect.NewRequest(create)); err != nil {
				log.Fatal(err)
			}
		case event.GetReset_():
			fmt.Println(event.GetRepository(), "has to be read again")
			return
		default:
			for _, change := range event.GetChanges() {
				fmt.Println(change.GetName(), change.GetOldOid(), "->", change.GetNewOid())
			}
		}
	}
	// Output:
	// soon is not there
	// soon has to be read again
}
