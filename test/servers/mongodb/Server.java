import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import java.util.List;

/**
 * A server that speaks MongoDB's protocol and keeps its data in memory, on
 * 127.0.0.1 and the port in the first argument. It has change streams, but no
 * transactions and no replica sets.
 */
public final class Server {
    /** What it announces: less, and a current driver would not talk to it. */
    private static final class Announced implements MongoVersion {
        @Override
        public List<Integer> getVersionArray() {
            return List.of(6, 0, 0);
        }

        @Override
        public int getWireVersion() {
            return 17;
        }
    }

    public static void main(String[] args) {
        MemoryBackend backend = new MemoryBackend();
        backend.version(new Announced());
        MongoServer server = new MongoServer(backend);
        // Change streams read the oplog.
        server.enableOplog();
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdownNow));
        server.bind("127.0.0.1", Integer.parseInt(args[0]));
    }
}
