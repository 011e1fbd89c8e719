//! unfold
fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let model = unfold::onnx::Model::open(std::path::Path::new(&args[1]))?;
    let t = std::time::Instant::now();
    let fused =
        unfold::fuse(&model, &unfold::FuseOptions { skip: args[3..].to_vec(), ..Default::default() })?;
    for s in &fused.plan.sites {
        println!(
            "{} {} {} axis {} nodes {} pre {:?} post {:?}",
            s.name,
            s.kind.name,
            s.channels,
            s.axis,
            s.nodes.len(),
            s.pre,
            s.post
        );
    }
    let n = fused.plan.sites.iter().filter(|s| s.is_folded()).count();
    println!(
        "{n}/{} folded, nodes {} -> {} {:?}",
        fused.plan.sites.len(),
        model.graph().node.len(),
        fused.model.graph().node.len(),
        t.elapsed()
    );
    fused.model.save(std::path::Path::new(&args[2]))?;
    Ok(())
}
