package control

import (
	"net/http"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
)

// reflection adds gRPC's reflection service in both versions (github.com/grpc/grpc, doc/server-reflection.md).
func reflection(mux *http.ServeMux, services []string, options ...connect.HandlerOption) {
	health, err := healthFile()
	if err != nil {
		panic("control: the definition of the health service: " + err.Error()) // a bug that every test finds
	}
	reflector := grpcreflect.NewReflector(
		grpcreflect.NamerFunc(func() []string { return services }),
		grpcreflect.WithDescriptorResolver(descriptions{health}),
	)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, options...))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, options...))
}

// descriptions resolves descriptors: of the health service under gRPC's name, and of all linked messages.
type descriptions struct{ health *protoregistry.Files }

func (d descriptions) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if file, err := d.health.FindFileByPath(path); err == nil {
		return file, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

func (d descriptions) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if found, err := d.health.FindDescriptorByName(name); err == nil {
		return found, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

// healthFile returns the definition of the health service with gRPC's names.
func healthFile() (*protoregistry.Files, error) {
	const in, out = ".grpc.health.v1.HealthCheckRequest", ".grpc.health.v1.HealthCheckResponse"
	file := protodesc.ToFileDescriptorProto(healthv1.File_packhorse_health_v1_health_proto)
	file.Name, file.Package = proto.String("grpc/health/v1/health.proto"), proto.String("grpc.health.v1")
	file.Options = nil
	for _, message := range file.MessageType {
		for _, field := range message.Field {
			if field.TypeName != nil { // an enum
				field.TypeName = proto.String(out + ".ServingStatus")
			}
		}
	}
	file.Service = []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Health"),
		Method: []*descriptorpb.MethodDescriptorProto{
			{Name: proto.String("Check"), InputType: proto.String(in), OutputType: proto.String(out)},
			{Name: proto.String("Watch"), InputType: proto.String(in), OutputType: proto.String(out),
				ServerStreaming: proto.Bool(true)},
		}}}
	return protodesc.NewFiles(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{file}})
}
